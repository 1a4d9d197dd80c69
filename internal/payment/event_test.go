package payment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func fixture(tb testing.TB, name string) []byte {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(tb, err)
	return raw
}

func TestParseEventEnvelopes(t *testing.T) {
	t.Parallel()

	old, err := ParseEvent(fixture(t, "event_2023-10-16.json"))
	require.NoError(t, err)
	require.False(t, old.IsThin())
	require.JSONEq(t, string(fixture(t, "subscription_2023-10-16.json")), string(old.Data))
	old.Data = nil
	require.Equal(t, Event{
		ID: "evt_1PqExample0001", Object: "event", Type: "customer.subscription.updated", APIVersion: "2023-10-16",
		Created: time.Date(2026, 11, 1, 0, 0, 5, 0, time.UTC), ObjectID: "sub_1PqExample",
	}, old)

	basil, err := ParseEvent(fixture(t, "event_2025-03-31.json"))
	require.NoError(t, err)
	basil.Data = nil
	require.Equal(t, Event{
		ID: "evt_1PqExample0002", Object: "event", Type: "customer.subscription.updated", APIVersion: "2025-03-31.basil",
		Account: "acct_1Connected", Livemode: true,
		Created: time.Date(2026, 11, 1, 0, 0, 5, 0, time.UTC), ObjectID: "sub_1PqExample",
	}, basil)

	thin, err := ParseEvent(fixture(t, "event_thin.json"))
	require.NoError(t, err)
	require.True(t, thin.IsThin())
	require.Equal(t, Event{
		ID: "evt_test_65RExampleThin", Object: ObjectThinEvent, Type: "v1.billing.meter.error_report_triggered",
		Created: time.Date(2026, 11, 1, 0, 0, 5, 0, time.UTC), ObjectID: "mtr_123",
	}, thin)
}

func TestParseEventRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"empty":              "",
		"blank":              "  \n",
		"no JSON":            "hello",
		"HTML":               "<html></html>",
		"cut":                `{"id":"evt_1","type":"x`,
		"two values":         `{"id":"evt_1"}{"id":"evt_2"}`,
		"null":               "null",
		"number":             "17",
		"string":             `"evt_1"`,
		"array":              `[{"id":"evt_1"}]`,
		"no id":              `{"object":"event","type":"invoice.paid"}`,
		"empty id":           `{"id":""}`,
		"blank id":           `{"id":"  "}`,
		"null id":            `{"id":null}`,
		"number as id":       `{"id":17}`,
		"object as id":       `{"id":{"id":"evt_1"}}`,
		"U+0000 in the id":   `{"id":"evt\u0000"}`,
		"a line break":       `{"id":"evt\n1"}`,
		"id of 256 bytes":    `{"id":"` + strings.Repeat("e", 256) + `"}`,
		"the last id is bad": `{"id":"evt_1","id":7}`,
		"a bottomless body":  `{"id":"evt_1","data":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"an unclosed nest":   `{"id":"evt_1","data":` + strings.Repeat(`{"object":`, 50_000),
		"number as a key":    `{1:2,"id":"evt_1"}`,
		"bad escape":         `{"id":"evt_\x"}`,
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseEvent([]byte(body))
			require.ErrorIs(t, err, ErrMalformed)
		})
	}
}

func TestParseEventTolerates(t *testing.T) {
	t.Parallel()
	seconds := time.Date(2026, 11, 1, 0, 0, 5, 0, time.UTC)
	cases := map[string]struct {
		body string
		want Event
	}{
		"nothing but an id":          {`{"id":"evt_1"}`, Event{}},
		"null data":                  {`{"id":"evt_1","data":null}`, Event{}},
		"data is a number":           {`{"id":"evt_1","data":5,"type":"a.b"}`, Event{Type: "a.b"}},
		"data is a list":             {`{"data":[1,2],"id":"evt_1"}`, Event{}},
		"data without object":        {`{"id":"evt_1","data":{}}`, Event{}},
		"object is null":             {`{"id":"evt_1","data":{"object":null}}`, Event{}},
		"object is a string":         {`{"id":"evt_1","data":{"object":"sub_1"}}`, Event{}},
		"object is a list":           {`{"id":"evt_1","data":{"object":[]}}`, Event{}},
		"object without an id":       {`{"id":"evt_1","data":{"object":{}}}`, Event{Data: json.RawMessage(`{}`)}},
		"object id is a number":      {`{"id":"evt_1","data":{"object":{"id":4}}}`, Event{Data: json.RawMessage(`{"id":4}`)}},
		"numbers for strings":        {`{"id":"evt_1","type":1,"object":2,"api_version":3,"account":4}`, Event{}},
		"objects for strings":        {`{"id":"evt_1","type":{},"object":[],"api_version":{},"account":[]}`, Event{}},
		"U+0000 in the type":         {`{"id":"evt_1","type":"a\u0000b"}`, Event{}},
		"U+0000 within the object":   {`{"id":"evt_1","data":{"object":{"id":"x","n":"\u0000"}}}`, Event{ObjectID: "x", Data: json.RawMessage(`{"id":"x","n":"\u0000"}`)}},
		"a type of a megabyte":       {`{"id":"evt_1","type":"` + strings.Repeat("x", 1<<20) + `"}`, Event{}},
		"livemode as a string":       {`{"id":"evt_1","livemode":"true"}`, Event{}},
		"livemode as a number":       {`{"id":"evt_1","livemode":1}`, Event{}},
		"livemode":                   {`{"id":"evt_1","livemode":true}`, Event{Livemode: true}},
		"repeated keys: the last":    {`{"id":"evt_0","type":"a","id":"evt_1","type":"b"}`, Event{Type: "b"}},
		"related_object is a number": {`{"id":"evt_1","related_object":7}`, Event{}},
		"created":                    {`{"id":"evt_1","created":1793491205}`, Event{Created: seconds}},
		"created as a float":         {`{"id":"evt_1","created":1.793491205e9}`, Event{Created: seconds}},
		"created as RFC 3339":        {`{"id":"evt_1","created":"2026-11-01T01:00:05.999+01:00"}`, Event{Created: seconds}},
		"created 0":                  {`{"id":"evt_1","created":0}`, Event{}},
		"created null":               {`{"id":"evt_1","created":null}`, Event{}},
		"created negative":           {`{"id":"evt_1","created":-5}`, Event{}},
		"created with a fraction":    {`{"id":"evt_1","created":1793491205.5}`, Event{}},
		"created after year 9999":    {`{"id":"evt_1","created":253402300800}`, Event{}},
		"created in the year 9999":   {`{"id":"evt_1","created":253402300799}`, Event{Created: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}},
		"created beyond int64":       {`{"id":"evt_1","created":99999999999999999999999}`, Event{}},
		"created beyond float64":     {`{"id":"evt_1","created":1e999999}`, Event{}},
		"created as words":           {`{"id":"evt_1","created":"yesterday"}`, Event{}},
		"created as an object":       {`{"id":"evt_1","created":{}}`, Event{}},
		"created before 1970":        {`{"id":"evt_1","created":"1960-01-01T00:00:00Z"}`, Event{}},
		"a huge number elsewhere":    {`{"id":"evt_1","data":{"object":{"id":"x","n":1e400}}}`, Event{ObjectID: "x", Data: json.RawMessage(`{"id":"x","n":1e400}`)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			event, err := ParseEvent([]byte(c.body))
			require.NoError(t, err)
			c.want.ID = "evt_1"
			require.Equal(t, c.want, event)
		})
	}
}

func TestParseEventKeepsNineThousandLevels(t *testing.T) {
	t.Parallel()
	event, err := ParseEvent([]byte(`{"id":"evt_1","data":{"object":{"id":"x","deep":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}}}`))
	require.NoError(t, err)
	require.Equal(t, "x", event.ObjectID)
}

func FuzzParseEvent(f *testing.F) {
	for _, name := range []string{"event_2023-10-16.json", "event_2025-03-31.json", "event_thin.json"} {
		f.Add(fixture(f, name))
	}
	f.Add([]byte(`{"id":"evt_1","data":5,"created":-1}`))
	f.Add([]byte(`{"id":"evt\u0000","data":{"object":{"items":{"data":[null,5,{"price":[]}]}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		event, err := ParseEvent(body)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			require.Equal(t, Event{}, event)
			return
		}
		require.NotEmpty(t, event.ID)
		for _, s := range []string{event.ID, event.Object, event.Type, event.APIVersion, event.Account, event.ObjectID} {
			require.LessOrEqual(t, len(s), 255)
			require.NotContains(t, s, "\x00")
			require.True(t, utf8.ValidString(s), "PostgreSQL takes only valid UTF-8")
		}
		require.True(t, event.Created.IsZero() || event.Created.Unix() > 0 && event.Created.Year() <= 9999)
		require.Zero(t, event.Created.Nanosecond())
		if event.Data != nil {
			require.True(t, json.Valid(event.Data))
		}
		_, _ = Subscription(event.Data)
	})
}
