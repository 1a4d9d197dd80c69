package openapitest

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Nonsense makes up requests from a document: some as it says, some nearly so, some far from it. Give each goroutine one
// of its own, all on the same Memory.
type Nonsense struct {
	Document *Document
	Random   *rand.Rand
	Memory   *Memory
	// Weight is how often an operation is chosen, against 100 for one that is not named here.
	Weight map[string]int
}

// Made is a request that was made up. Target is the path with its query, as it is sent.
type Made struct {
	Operation      *Operation
	Method, Target string
	Header         http.Header
	Body           []byte
}

// Memory has words by the name of a field or parameter, and learns more of them from answers, so that requests are about
// things that exist. It is safe for use by many goroutines.
type Memory struct {
	mu    sync.Mutex
	words map[string][]string
}

// maxWords is how many words a name has; a new one takes the place of a random old one.
const maxWords = 200

// NewMemory starts with some words by name.
func NewMemory(words map[string][]string) *Memory {
	m := &Memory{words: map[string][]string{}}
	for name, known := range words {
		m.words[name] = slices.Clone(known)
	}
	return m
}

// Learn takes the strings out of an answer in JSON. learnt says under which names those of a field are kept.
func (m *Memory) Learn(random *rand.Rand, body []byte, learnt map[string]string) {
	var tree any
	if json.Unmarshal(body, &tree) == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.learn(random, tree, learnt)
	}
}

func (m *Memory) learn(random *rand.Rand, tree any, learnt map[string]string) {
	switch node := tree.(type) {
	case []any:
		for _, element := range node {
			m.learn(random, element, learnt)
		}
	case map[string]any:
		for field, value := range node {
			text, isText := value.(string)
			name, wanted := learnt[field]
			switch {
			case !isText || !wanted:
				m.learn(random, value, learnt)
			case len(m.words[name]) < maxWords:
				m.words[name] = append(m.words[name], text)
			default:
				m.words[name][random.IntN(maxWords)] = text
			}
		}
	}
}

func (m *Memory) word(random *rand.Rand, name string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.words[name]
	if len(known) == 0 {
		return "", false
	}
	return known[random.IntN(len(known))], true
}

// chance is true p times in a hundred.
func (n Nonsense) chance(p int) bool { return n.Random.IntN(100) < p }

func pick[T any](n Nonsense, from []T) T { return from[n.Random.IntN(len(from))] }

// Next makes up a request.
func (n Nonsense) Next() Made {
	o := n.operation()
	made := Made{Operation: o, Method: o.Method, Header: http.Header{}}
	wild := 0 // how many in a hundred values are no good
	switch n.Random.IntN(10) {
	case 0:
		wild = 50
	case 1, 2:
		wild = 15
	}
	path := o.Path
	query := url.Values{}
	for _, p := range o.Parameters {
		switch {
		case p.In == "path":
			value := n.parameter(o, p, wild)
			if n.chance(5) && wild > 0 {
				value = pick(n, oddSegments)
			} else {
				value = url.PathEscape(value)
			}
			path = strings.Replace(path, "{"+p.Name+"}", value, 1)
		case !p.Required && n.chance(60), n.chance(wild / 4):
		case p.In == "query":
			query.Set(p.Name, n.parameter(o, p, wild))
			if n.chance(wild / 5) {
				query.Add(p.Name, n.parameter(o, p, wild))
			}
		case p.In == "header":
			made.Header.Set(p.Name, printable(n.parameter(o, p, wild)))
		}
	}
	made.Target = path
	if len(query) > 0 {
		made.Target += "?" + query.Encode()
	}
	if o.Body != nil {
		made.Body = n.body(o, wild)
		made.Header.Set("Content-Type", "application/json")
	}
	if wild > 0 {
		n.spoil(&made)
	}
	return made
}

func (n Nonsense) operation() *Operation {
	weight := func(o *Operation) int {
		if w, named := n.Weight[o.ID]; named {
			return w
		}
		return 100
	}
	total := 0
	for _, o := range n.Document.operations {
		total += weight(o)
	}
	at := n.Random.IntN(total)
	for _, o := range n.Document.operations {
		if at -= weight(o); at < 0 {
			return o
		}
	}
	return n.Document.operations[0]
}

// parameter makes up a value. A parameter of the path has words by the operation's tag and its own name.
func (n Nonsense) parameter(o *Operation, p Parameter, wild int) string {
	if n.chance(wild) {
		return pick(n, nastyText)
	}
	names := []string{p.Name}
	if p.In == "path" {
		names = []string{o.Tag + " " + p.Name, p.Name}
	}
	for _, name := range names {
		if word, known := n.Memory.word(n.Random, name); known && n.chance(90) {
			return word
		}
	}
	switch value := n.value(p.Name, p.Schema, 0, 0).(type) {
	case string:
		return value
	case nil:
		return ""
	default:
		encoded, _ := json.Marshal(value) // a number or a truth
		return string(encoded)
	}
}

// oddSegments are segments of a path as they are sent.
var oddSegments = []string{"", ".", "..", "%2e%2e", "a%2Fb", "%00", "%ff", "%E2%80%A8", "a;b=c", "a+b", "%25", "%252F", "*", ":id", "{id}", strings.Repeat("x", 3000)}

// printable leaves of a text what a header may hold.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, text)
}

// spoil changes something that is not in the body.
func (n Nonsense) spoil(made *Made) {
	switch n.Random.IntN(8) {
	case 0:
		made.Method = pick(n, []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "BREW"})
	case 1:
		path, query, _ := strings.Cut(made.Target, "?")
		made.Target = pick(n, []string{path + "/", "/" + path, path + "/x", path + "//", strings.ToUpper(path), strings.Replace(path, "/v1", "/v2", 1), path + "%20", "/"}) + "?" + query
	case 2:
		made.Header.Set("Content-Type", pick(n, []string{"text/plain", "application/xml", "multipart/form-data; boundary=x", "application/json; charset=utf-16", "", "\xff"}))
	case 3:
		made.Header.Set("Content-Encoding", pick(n, []string{"gzip", "br", "identity"}))
	case 4:
		made.Header.Set("X-Request-Id", printable(pick(n, nastyText)))
	case 5:
		made.Header.Set("Accept", pick(n, []string{"text/html", "image/*;q=0", "", "application/xml"}))
	}
}
