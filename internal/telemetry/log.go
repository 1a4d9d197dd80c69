// Package telemetry makes the logger, the metrics and the server that an operator's tools ask: health, metrics and the
// level of the log. It is never reachable through the public address.
package telemetry

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger writes one JSON object per line to out, which is stderr outside tests. The level can be changed while the
// program runs: the ops server's PUT /log/level takes {"level":"debug"}.
func NewLogger(out io.Writer, level zapcore.Level) (*zap.Logger, zap.AtomicLevel) {
	at := zap.NewAtomicLevelAt(level)
	encoder := zap.NewProductionEncoderConfig()
	encoder.TimeKey = "time"
	encoder.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder.EncodeDuration = zapcore.StringDurationEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(encoder), zapcore.Lock(zapcore.AddSync(out)), at)
	return zap.New(core, zap.AddStacktrace(zapcore.DPanicLevel)), at
}
