package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nastyText is text that programs stumble over.
var nastyText = []string{
	"", " ", "\x00", "a\x00b", "line\nbreak", "tab\t", "\u2028", "\u2029", "\u202etxt", "\ufeff", "\ufffd", "e\u0301", "😀", "👩‍👩‍👧‍👦", "日本語", "\U0010ffff",
	"' OR 1=1 --", `"; DROP TABLE plans; --`, `\`, `"`, "%", "%s%n", "_", "null", "undefined", "NaN", "-1", "0", "1e309", "true", "[]", "{}", "../../etc/passwd", "<script>alert(1)</script>",
	"${jndi:ldap://x}", "{{7*7}}", strings.Repeat("a", 254), strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("ä", 255), strings.Repeat("x", 5000),
	"2026-13-45T99:99:99Z", "0000-00-00T00:00:00Z", "10000-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "2026-01-01T00:00:60Z",
	"2026-01-01T00:00:00+23:59", "infinity", "-infinity", "99999999999999999999h", "-1h", "1ns", "1h1", "00000000-0000-0000-0000-000000000000", "urn:uuid:0198f2a4-7c00-7000-8000-000000000001",
	"{0198f2a4-7c00-7000-8000-000000000001}", "0198F2A47C0070008000000000000001", "a@b", "\"a b\"@example.org", "a@" + strings.Repeat("b", 300) + ".org", "Name <a@b.org>",
}

// nastyJSON are values as they are sent, whatever the schema says. A lone surrogate is valid JSON and no valid text.
var nastyJSON = []string{
	"null", "true", "false", "0", "-0", "-1", "1.5", "1e400", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808", "-9223372036854775809", strings.Repeat("9", 400),
	"0." + strings.Repeat("0", 400) + "1", `""`, `"\ud800"`, `"\udc00\ud800"`, `"\u0000"`, `"\u2028"`, "[]", "{}", "[null]", `{"":0}`, `{"a":{"a":{"a":1}}}`, `[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]`,
	strings.Repeat("[", 2000) + strings.Repeat("]", 2000), strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500), `"` + strings.Repeat("y", 100_000) + `"`,
	"[" + strings.Repeat("0,", 5000) + "0]",
}

// nastyBodies are bodies that are no JSON object.
var nastyBodies = []string{
	"", " ", "null", "[]", `""`, "0", "{", "}", "{}{}", `{"a":1,}`, `{a:1}`, "{'a':1}", "\xef\xbb\xbf{}", "{\"a\":\"\xff\"}", "\x00", "{}\x00", "<xml/>", "a=1&b=2", "\x1f\x8b\x08", `{"a":1,"a":2}`,
	"// comment\n{}", "NaN", `{"a":01}`, `{"a":+1}`, `{"a":.5}`, "{\"a\":\"\n\"}", `{"\ud800":1}`, `{"a":"\x"}`, strings.Repeat("{", 100_000), strings.Repeat(" ", 1<<20+1),
}

// raw is JSON as it is sent; see Encode.
type raw string

// body makes up a body for the operation.
func (n Nonsense) body(o *Operation, wild int) []byte {
	if n.chance(wild / 3) {
		return []byte(pick(n, nastyBodies))
	}
	if !o.BodyRequired && n.chance(20) {
		return nil
	}
	value := n.value("", o.Body, wild, 0)
	fields, isObject := value.(map[string]any)
	if isObject && n.chance(wild) {
		n.mutate(fields)
	}
	body := Encode(value)
	switch {
	case n.chance(wild / 10):
		return body[:n.Random.IntN(len(body)+1)]
	case isObject && len(fields) > 0 && n.chance(wild/10): // a field twice
		name := slices.Sorted(maps.Keys(fields))[0]
		return append(append(append(append(body[:len(body)-1], ','), Encode(name)...), ':'), append(Encode(fields[name]), '}')...)
	}
	return body
}

// mutate changes one field: away, nonsense, or a new one.
func (n Nonsense) mutate(fields map[string]any) {
	names := slices.Sorted(maps.Keys(fields))
	if len(names) == 0 || n.chance(20) {
		fields[pick(n, nastyText)] = raw(pick(n, nastyJSON))
		return
	}
	name := pick(n, names)
	switch inner := fields[name].(type) {
	case map[string]any:
		if n.chance(60) {
			n.mutate(inner)
			return
		}
	case []any:
		if len(inner) > 0 && n.chance(60) {
			if object, ok := inner[0].(map[string]any); ok {
				n.mutate(object)
				return
			}
		}
	}
	if n.chance(25) {
		delete(fields, name)
		return
	}
	fields[name] = raw(pick(n, nastyJSON))
}

// Disturb puts nonsense in the place of one value somewhere in the tree, which is made of maps, slices and what Go's
// decoder makes of the rest.
func (n Nonsense) Disturb(tree any) {
	switch node := tree.(type) {
	case []any:
		if len(node) > 0 {
			n.Disturb(pick(n, node))
		}
	case map[string]any:
		names := slices.Sorted(maps.Keys(node))
		if len(names) == 0 {
			return
		}
		name := pick(n, names)
		switch inner := node[name].(type) {
		case map[string]any, []any:
			if n.chance(80) {
				n.Disturb(inner)
				return
			}
		}
		node[name] = raw(pick(n, nastyJSON))
	}
}

// Encode writes the value. JSON may hold what Go's encoder refuses, so raw parts are put in by hand.
func Encode(value any) []byte {
	switch v := value.(type) {
	case raw:
		return []byte(v)
	case map[string]any:
		b := []byte{'{'}
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(append(b, Encode(name)...), ':'), Encode(v[name])...)
		}
		return append(b, '}')
	case []any:
		b := []byte{'['}
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, Encode(element)...)
		}
		return append(b, ']')
	default:
		encoded, err := json.Marshal(v)
		if err != nil { // a value of this package's own making
			panic(err)
		}
		return bytes.TrimSpace(encoded)
	}
}

// value makes up a value by a schema. name is the field's, for which there may be words; wild of a hundred values are no
// good.
func (n Nonsense) value(name string, schema map[string]any, wild, depth int) any {
	schema = n.Document.Resolve(schema)
	if n.chance(wild / 4) {
		return raw(pick(n, nastyJSON))
	}
	if options, ok := schema["oneOf"].([]any); ok {
		option, _ := options[0].(map[string]any) // the others are null
		if n.chance(15) {
			option, _ = pick(n, options).(map[string]any)
		}
		return n.value(name, option, wild, depth)
	}
	if enum, ok := schema["enum"].([]any); ok {
		return pick(n, enum)
	}
	kind, _ := schema["type"].(string)
	if kinds, several := schema["type"].([]any); several {
		kind, _ = kinds[0].(string)
		if n.chance(15) {
			kind, _ = pick(n, kinds).(string)
		}
	}
	switch kind {
	case "object":
		return n.object(schema, wild, depth)
	case "array":
		return n.array(name, schema, wild, depth)
	case "boolean":
		return n.chance(50)
	case "integer":
		return n.integer(schema)
	case "string":
		return n.text(name, schema, wild)
	default:
		return nil
	}
}

func (n Nonsense) object(schema map[string]any, wild, depth int) map[string]any {
	made := map[string]any{}
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		property, _ := properties[name].(map[string]any)
		if slices.Contains(required, any(name)) || n.chance(max(10, 50-20*depth)) {
			made[name] = n.value(name, property, wild, depth+1)
		}
	}
	return made
}

func (n Nonsense) array(name string, schema map[string]any, wild, depth int) []any {
	items, _ := schema["items"].(map[string]any)
	count := n.Random.IntN(4)
	if n.chance(wild / 10) {
		count = 300
	}
	made := make([]any, count)
	for i := range made {
		made[i] = n.value(strings.TrimSuffix(name, "s"), items, wild, depth+1)
	}
	return made
}

func (n Nonsense) integer(schema map[string]any) any {
	number := func(name string, otherwise int64) int64 {
		if bound, ok := schema[name].(json.Number); ok {
			if at, err := bound.Int64(); err == nil {
				return at
			}
		}
		return otherwise
	}
	low, high := number("minimum", 0), number("maximum", 1<<40)
	switch n.Random.IntN(10) {
	case 0:
		return low
	case 1:
		return high
	default:
		return low + n.Random.Int64N(high-low+1)
	}
}

func (n Nonsense) text(name string, schema map[string]any, wild int) string {
	if n.chance(wild / 2) {
		return pick(n, nastyText)
	}
	if word, known := n.Memory.word(n.Random, name); known && n.chance(90) {
		return word
	}
	switch schema["format"] {
	case "date-time":
		return n.instant()
	case "uuid":
		return fmt.Sprintf("0198f2a4-7c00-7000-8000-%012x", n.Random.IntN(1<<30))
	case "email":
		return "user" + strconv.Itoa(n.Random.IntN(100)) + "@example.org"
	}
	if pattern, _ := schema["pattern"].(string); strings.Contains(pattern, "ms|us") {
		return pick(n, []string{"1h", "72h", "720h", "0s", "1s", "1ms", "1h30m", "0.5h", "876000h", "876001h", "2000000h", "-1h", "1us", "1ns", "2562047h47m16.854775807s"})
	}
	return "w" + strconv.Itoa(n.Random.IntN(50))
}

func (n Nonsense) instant() string {
	at := time.Now().UTC()
	switch n.Random.IntN(6) {
	case 0:
		at = at.Add(-time.Duration(n.Random.Int64N(int64(48 * time.Hour))))
	case 1:
		at = time.Date(1+n.Random.IntN(9999), 1, 1, 0, 0, 0, 0, time.UTC)
	case 2:
		return at.Add(time.Hour).In(time.FixedZone("", 3600*(n.Random.IntN(24)-12))).Format(time.RFC3339Nano)
	default:
		at = at.Add(time.Duration(n.Random.Int64N(int64(90 * 24 * time.Hour))))
	}
	return at.Format(pick(n, []string{time.RFC3339, time.RFC3339Nano}))
}
