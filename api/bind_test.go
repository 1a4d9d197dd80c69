package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type bound struct {
	Name   string         `json:"name"`
	Count  *int64         `json:"count"`
	Yes    bool           `json:"yes"`
	List   []string       `json:"list"`
	Inner  *boundInner    `json:"inner"`
	At     *time.Time     `json:"at"`
	For    *time.Duration `json:"for"`
	Inners []boundInner   `json:"inners"`
}

type boundInner struct {
	Key string `json:"key"`
}

func TestBindFillsWhatFits(t *testing.T) {
	t.Parallel()
	var in bound
	present, err := decode([]byte(`{"name":"n","count":-3,"yes":true,"list":["a",""],"inner":{"key":"k"},"at":"2026-01-02T03:04:05.1234567+01:00","for":"1h30m","inners":[{},{"key":"x"}]}`), &in)
	require.NoError(t, err)
	at, count, d := time.Date(2026, 1, 2, 2, 4, 5, 123456000, time.UTC), int64(-3), 90*time.Minute
	require.Equal(t, bound{"n", &count, true, []string{"a", ""}, &boundInner{"k"}, &at, &d, []boundInner{{}, {"x"}}}, in)
	require.True(t, present["for"])

	in = bound{}
	present, err = decode([]byte(`{"inner":null,"count":null}`), &in)
	require.NoError(t, err)
	require.Equal(t, bound{}, in)
	require.Equal(t, given{"inner": true, "count": true}, present, "null is not absent")
	for _, empty := range []string{"", " \n"} {
		present, err = decode([]byte(empty), &in)
		require.NoError(t, err)
		require.Empty(t, present)
	}
}

func TestBindNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for body, pointers := range map[string][]string{
		`{"x":1}`:                                {"/x"},
		`{"Name":"n"}`:                           {"/Name"},
		`{"":1}`:                                 {"/"},
		`{"a/b~c":1}`:                            {"/a~1b~0c"},
		`{"name":1,"yes":"no","list":{}}`:        {"/list", "/name", "/yes"},
		`{"name":null}`:                          {"/name"},
		`{"count":1.5}`:                          {"/count"},
		`{"count":1e2}`:                          {"/count"},
		`{"count":9223372036854775808}`:          {"/count"},
		`{"count":"1"}`:                          {"/count"},
		`{"list":["a",1,null]}`:                  {"/list/1", "/list/2"},
		`{"inner":{"key":1,"more":2}}`:           {"/inner/key", "/inner/more"},
		`{"inners":[{"key":"a"},{"kez":"b"},3]}`: {"/inners/1/kez", "/inners/2"},
		`{"at":1767225600}`:                      {"/at"},
		`{"at":"10000-01-01T00:00:00Z"}`:         {"/at"},
		`{"at":"0000-01-01T00:00:00Z"}`:          {"/at"},
		`{"for":3600}`:                           {"/for"},
		`{"for":"1 h"}`:                          {"/for"},
		`{"for":"1ns"}`:                          {"/for"},
		`{"for":"3000000h"}`:                     {"/for"},
		`{"name":"a","name":"b"}`:                {"/name"},
		`{"inner":{"key":"a","key":"b"}}`:        {"/inner/key"},
		`{"name":"a\u0000b"}`:                    {"/name"},
	} {
		var in bound
		_, err := decode([]byte(body), &in)
		var p *problemError
		require.ErrorAs(t, err, &p, body)
		require.Equal(t, "invalid_request", p.Code, body)
		var got []string
		for _, e := range p.Errors {
			got = append(got, e.Pointer)
		}
		require.Equal(t, pointers, got, body)
	}
	for _, body := range []string{"[]", "null", "1", `"x"`, "{", "{}{}", "{} x", `{"name":}`, "{'name':1}", "{\"name\":\"\xff\"}", "\xef\xbb\xbf{}", `{"name":"a",}`} {
		var in bound
		_, err := decode([]byte(body), &in)
		var p *problemError
		require.ErrorAs(t, err, &p, body)
		require.Equal(t, "invalid_json", p.Code, body)
	}
}

func TestBindBoundsDepthAndErrors(t *testing.T) {
	t.Parallel()
	var in bound
	var p *problemError
	_, err := decode([]byte(`{"inner":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+`}`), &in)
	require.ErrorAs(t, err, &p)
	require.Len(t, p.Errors, maxFieldErrors)
	require.Less(t, len(p.Errors[0].Pointer), 100, "pointers stop growing below the deepest level")
	_, err = decode([]byte(`{"list":[`+strings.TrimSuffix(strings.Repeat("1,", 10000), ",")+`]}`), &in)
	require.ErrorAs(t, err, &p)
	require.Len(t, p.Errors, maxFieldErrors)
}

// Each value of a body has a pointer, so a pointer must not carry what the body says at length: neither into memory, once
// for every value, nor into the answer, once for every error.
func TestBindBoundsPointers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 100_000)
	for name, body := range map[string]string{
		"values below a long name": `{"` + long + `":[` + strings.TrimSuffix(strings.Repeat("0,", 50_000), ",") + `]}`,
		"errors below a long name": `{"` + long + `":{` + strings.TrimSuffix(strings.Repeat(`"a":0,`, 10_000), ",") + `}}`,
		"long names below another": strings.Repeat(`{"`+long[:10_000]+`":`, maxDepth) + "0" + strings.Repeat("}", maxDepth),
		"a long unknown name":      `{"` + long + `":0}`,
	} {
		var before, after runtime.MemStats
		var in bound
		var p *problemError
		runtime.ReadMemStats(&before)
		_, err := decode([]byte(body), &in)
		runtime.ReadMemStats(&after)
		require.ErrorAs(t, err, &p, name)
		for _, wrong := range p.Errors {
			require.LessOrEqual(t, len(wrong.Pointer), 2*maxPointer, name)
		}
		// Other tests allocate meanwhile; without the bound it is five gigabytes.
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30), name)
	}
}

// FuzzBind holds bind to two laws: it never panics, and what it takes means the same to encoding/json.
func FuzzBind(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n","count":-3,"yes":true,"list":["a",""],"inner":{"key":"k"}}`, `{}`, `[]`, `{"inners":[{},{"key":"x"}]}`, `{"name":"a","name":"b"}`,
		`{"at":"2026-01-02T03:04:05Z","for":"1h"}`, `{"inner":null}`, strings.Repeat("[", 40), `{"inner":{"inner":{}}}`, "{\"name\":\"\\ud800\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var ours bound
		present, err := decode(body, &ours)
		if err != nil {
			var p *problemError
			require.True(t, errors.As(err, &p) && p.Status == 400, "every refusal is a problem")
			return
		}
		if len(present) == 0 {
			return
		}
		// Durations and instants have a syntax of their own here.
		ours.At, ours.For = nil, nil
		var tree map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &tree))
		delete(tree, "at")
		delete(tree, "for")
		rest, err := json.Marshal(tree)
		require.NoError(t, err)
		var theirs bound
		decoder := json.NewDecoder(bytes.NewReader(rest))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&theirs))
		require.Equal(t, theirs, ours)
	})
}
