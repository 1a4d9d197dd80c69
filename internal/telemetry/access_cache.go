package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// AccessCache is what the memory of the cached access mode has done since the start.
type AccessCache struct {
	Hits, Misses uint64        // users found in memory, or read from the database
	Fallbacks    uint64        // questions answered from the database because the feed of changes was silent
	Users        int           // in memory
	FeedAge      time.Duration // since the last poll of the feed that came back was sent; negative without a feed
}

// WatchAccessCache reads the memory of access checks at each scrape.
func (m *Metrics) WatchAccessCache(read func() AccessCache) {
	m.registry.MustRegister(&accessCacheCollector{read: read})
}

type accessCacheCollector struct {
	read func() AccessCache
}

var (
	accessCacheLookups   = describe("access_cache_lookups_total", "Users asked for by what memory knew: hit, miss.", "outcome")
	accessCacheFallbacks = describe("access_cache_fallbacks_total", "Access questions answered from the database because the feed of changes was silent.")
	accessCacheUsers     = describe("access_cache_users", "Users in memory.")
	accessFeedAge        = describe("access_feed_age_seconds", "Age of the last sign of life of the feed of changes; missing while there is none.")
)

func (c *accessCacheCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{accessCacheLookups, accessCacheFallbacks, accessCacheUsers, accessFeedAge} {
		to <- d
	}
}

func (c *accessCacheCollector) Collect(to chan<- prometheus.Metric) {
	s := c.read()
	to <- prometheus.MustNewConstMetric(accessCacheLookups, prometheus.CounterValue, float64(s.Hits), "hit")
	to <- prometheus.MustNewConstMetric(accessCacheLookups, prometheus.CounterValue, float64(s.Misses), "miss")
	to <- prometheus.MustNewConstMetric(accessCacheFallbacks, prometheus.CounterValue, float64(s.Fallbacks))
	to <- prometheus.MustNewConstMetric(accessCacheUsers, prometheus.GaugeValue, float64(s.Users))
	if s.FeedAge >= 0 {
		to <- prometheus.MustNewConstMetric(accessFeedAge, prometheus.GaugeValue, s.FeedAge.Seconds())
	}
}
