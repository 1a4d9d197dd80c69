package temporalclient

import (
	"strings"
	"unicode"

	"go.temporal.io/sdk/log"
	"go.uber.org/zap"
)

// NewLogger lets the Temporal SDK write to zap, with its keys in our spelling (WorkflowType becomes workflow_type).
func NewLogger(logger *zap.Logger) log.Logger {
	return adapter{logger.WithOptions(zap.AddCallerSkip(1)).Sugar()}
}

type adapter struct{ *zap.SugaredLogger }

func (a adapter) Debug(msg string, keyvals ...any) { a.Debugw(msg, spelled(keyvals)...) }
func (a adapter) Info(msg string, keyvals ...any)  { a.Infow(msg, spelled(keyvals)...) }
func (a adapter) Warn(msg string, keyvals ...any)  { a.Warnw(msg, spelled(keyvals)...) }
func (a adapter) Error(msg string, keyvals ...any) { a.Errorw(msg, spelled(keyvals)...) }

// With makes every entry carry these keys.
func (a adapter) With(keyvals ...any) log.Logger {
	return adapter{a.SugaredLogger.With(spelled(keyvals)...)}
}

// WithCallerSkip keeps the place of the call right behind the SDK's own wrappers.
func (a adapter) WithCallerSkip(n int) log.Logger {
	return adapter{a.Desugar().WithOptions(zap.AddCallerSkip(n)).Sugar()}
}

func spelled(keyvals []any) []any {
	list := make([]any, len(keyvals))
	for i, v := range keyvals {
		if key, ok := v.(string); ok && i%2 == 0 {
			v = snakeCase(key)
		}
		list[i] = v
	}
	return list
}

// snakeCase keeps runs of capitals together: WorkflowID becomes workflow_id.
func snakeCase(key string) string {
	var b strings.Builder
	runes := []rune(key)
	for i, r := range runes {
		if unicode.IsUpper(r) {
			startsWord := i > 0 && (unicode.IsLower(runes[i-1]) || (i+1 < len(runes) && unicode.IsLower(runes[i+1])))
			if startsWord {
				b.WriteByte('_')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}
