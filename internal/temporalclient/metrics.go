package temporalclient

import (
	"fmt"

	prom "github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/opentelemetry"
	"go.uber.org/zap"
)

// secondsBuckets span a fast call of the server (1 ms) to a long run (5 min). The SDK measures all its times in
// seconds; OpenTelemetry's own buckets are meant for milliseconds.
var secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300} //nolint:gochecknoglobals // a constant list

// NewMetrics puts the Temporal SDK's own metrics (temporal_…) into a Prometheus registry.
func NewMetrics(registry prom.Registerer, logger *zap.Logger) (client.MetricsHandler, error) {
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry), prometheus.WithoutScopeInfo(), prometheus.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("setting up the Temporal SDK's metrics: %w", err)
	}
	histograms := metric.NewView(metric.Instrument{Kind: metric.InstrumentKindHistogram},
		metric.Stream{Aggregation: metric.AggregationExplicitBucketHistogram{Boundaries: secondsBuckets}})
	provider := metric.NewMeterProvider(metric.WithReader(exporter), metric.WithView(histograms))
	return opentelemetry.NewMetricsHandler(opentelemetry.MetricsHandlerOptions{
		Meter:                provider.Meter("temporal-sdk-go"),
		UseMonotonicCounters: true,
		// A metric that cannot be made must not take the process down, which is what the handler does by itself.
		OnError: func(err error) { logger.Warn("a metric of the Temporal SDK is missing", zap.Error(err)) },
	}), nil
}
