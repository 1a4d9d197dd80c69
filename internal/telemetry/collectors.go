package telemetry

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// scrapeDeadline bounds a question that a scrape asks. Where the answer does not come the series is missing, which a
// rule can see; an old or a zero value would look like good news.
const scrapeDeadline = 2 * time.Second

// Backlog is the work that waits in the database.
type Backlog struct {
	WebhookOldestUnprocessed time.Duration // age of the oldest pending event; 0 when there is none
	OutboxPending            int64         // facts that were not dispatched yet
	OutboxOldest             time.Duration // age of the oldest of them; 0 when there is none
}

// WatchBacklog reads the backlog at each scrape.
func (m *Metrics) WatchBacklog(read func(context.Context) (Backlog, error)) {
	m.registry.MustRegister(&backlogCollector{read: read})
}

type backlogCollector struct {
	read func(context.Context) (Backlog, error)
}

var (
	webhookOldest = describe("webhook_oldest_unprocessed_seconds", "Age of the oldest event that is not applied yet.")
	outboxPending = describe("outbox_pending", "Facts that are not dispatched yet.")
	outboxOldest  = describe("outbox_oldest_seconds", "Age of the oldest fact that is not dispatched yet.")
)

func (c *backlogCollector) Describe(to chan<- *prometheus.Desc) {
	to <- webhookOldest
	to <- outboxPending
	to <- outboxOldest
}

func (c *backlogCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeDeadline)
	defer cancel()
	b, err := c.read(ctx)
	if err != nil {
		return
	}
	to <- prometheus.MustNewConstMetric(webhookOldest, prometheus.GaugeValue, b.WebhookOldestUnprocessed.Seconds())
	to <- prometheus.MustNewConstMetric(outboxPending, prometheus.GaugeValue, float64(b.OutboxPending))
	to <- prometheus.MustNewConstMetric(outboxOldest, prometheus.GaugeValue, b.OutboxOldest.Seconds())
}

// WatchSkippedOverlaps reads at each scrape, by job, how often the scheduler left a run out because the one before
// still ran.
func (m *Metrics) WatchSkippedOverlaps(read func(context.Context) (map[string]int64, error)) {
	m.registry.MustRegister(&overlapCollector{read: read})
}

type overlapCollector struct {
	read func(context.Context) (map[string]int64, error)
}

var overlapsSkipped = describe("job_overlaps_skipped_total", "Runs left out because the one before still ran.", "job")

func (c *overlapCollector) Describe(to chan<- *prometheus.Desc) { to <- overlapsSkipped }

func (c *overlapCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeDeadline)
	defer cancel()
	skipped, err := c.read(ctx)
	if err != nil {
		return
	}
	for job, n := range skipped {
		to <- prometheus.MustNewConstMetric(overlapsSkipped, prometheus.CounterValue, float64(n), job)
	}
}

// WatchPool shows the use of one pool of database connections under its name.
func (m *Metrics) WatchPool(name string, pool *pgxpool.Pool) {
	prometheus.WrapRegistererWith(prometheus.Labels{"pool": name}, m.registry).MustRegister(&poolCollector{pool: pool})
}

type poolCollector struct {
	pool *pgxpool.Pool
}

var (
	poolConnections = describe("db_pool_connections", "Connections by state: idle, in_use, opening.", "state")
	poolMax         = describe("db_pool_max_connections", "Connections at most.")
	poolAcquires    = describe("db_pool_acquires_total", "Connections taken from the pool.")
	poolWaited      = describe("db_pool_waited_acquires_total", "Connections that had to be waited for.")
	poolWait        = describe("db_pool_acquire_wait_seconds_total", "Time spent waiting for a connection.")
	poolCanceled    = describe("db_pool_canceled_acquires_total", "Waits for a connection that were given up.")
)

func (c *poolCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolConnections, poolMax, poolAcquires, poolWaited, poolWait, poolCanceled} {
		to <- d
	}
}

func (c *poolCollector) Collect(to chan<- prometheus.Metric) {
	s := c.pool.Stat()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value)
	}
	gauge(poolConnections, float64(s.IdleConns()), "idle")
	gauge(poolConnections, float64(s.AcquiredConns()), "in_use")
	gauge(poolConnections, float64(s.ConstructingConns()), "opening")
	gauge(poolMax, float64(s.MaxConns()))
	counter(poolAcquires, float64(s.AcquireCount()))
	counter(poolWaited, float64(s.EmptyAcquireCount()))
	counter(poolWait, s.EmptyAcquireWaitTime().Seconds())
	counter(poolCanceled, float64(s.CanceledAcquireCount()))
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}
