// Package openapitest holds an HTTP API to its OpenAPI document: what it answers, what it takes, and, with requests that
// are made up from the document, what it does with nonsense.
package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pb33f/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// location is the name under which the document is known to the schema compiler.
const location = "file:///openapi.yaml"

// problemSchema is what every error is, also on paths that are in no document.
const problemSchema = "#/components/schemas/Problem"

const problemType = "application/problem+json"

// Document is an OpenAPI 3.1 document that is ready to judge. It is safe for use by many goroutines.
type Document struct {
	root       map[string]any
	operations []*Operation
	problem    *jsonschema.Schema
}

// Operation is one method of one path.
type Operation struct {
	ID, Method, Path string
	Tag              string // the first one
	Role             string // x-required-role; empty for a public one
	Public           bool   // it asks for no key
	Parameters       []Parameter
	Body             map[string]any // the schema of the JSON body, nil where there is none
	BodyRequired     bool

	segments []string
	body     *jsonschema.Schema
	answers  map[string]response // by status
}

// Parameter is a parameter of an operation, its references followed.
type Parameter struct {
	Name, In string
	Required bool
	Schema   map[string]any
	Example  any

	compiled *jsonschema.Schema
}

type response struct {
	content map[string]*jsonschema.Schema // by media type
	headers []header
}

type header struct {
	name     string
	required bool
	schema   *jsonschema.Schema
}

// Parse reads a document and compiles its schemas. References may point within the document only.
func Parse(text []byte) (*Document, error) {
	var loose any
	if err := yaml.Unmarshal(text, &loose); err != nil {
		return nil, fmt.Errorf("reading the document: %w", err)
	}
	encoded, err := json.Marshal(loose) // numbers as JSON has them
	if err != nil {
		return nil, fmt.Errorf("reading the document as JSON: %w", err)
	}
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return nil, fmt.Errorf("reading the document as JSON: %w", err)
	}
	root, ok := tree.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the document is a %T and no object", tree)
	}
	p := &parser{document: &Document{root: root}}
	if p.answers, err = newCompiler(root, writtenInstant); err != nil {
		return nil, err
	}
	if p.requests, err = newCompiler(root, readInstant); err != nil {
		return nil, err
	}
	if p.document.problem, err = p.answers.Compile(location + problemSchema); err != nil {
		return nil, fmt.Errorf("compiling %s: %w", problemSchema, err)
	}
	if err := p.paths(); err != nil {
		return nil, err
	}
	return p.document, nil
}

func newCompiler(root map[string]any, instant func(any) error) (*jsonschema.Compiler, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020) // what OpenAPI 3.1 takes its schemas from
	c.AssertFormat()
	c.RegisterFormat(&jsonschema.Format{Name: "date-time", Validate: instant})
	if err := c.AddResource(location, root); err != nil {
		return nil, fmt.Errorf("compiling the document: %w", err)
	}
	return c, nil
}

// writtenPattern is how the API writes instants: in UTC, microseconds where there are any.
var writtenPattern = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,5}[1-9])?Z$`)

func writtenInstant(value any) error {
	text, isText := value.(string)
	if isText && !writtenPattern.MatchString(text) {
		return fmt.Errorf("%q is not written in UTC to the microsecond", text)
	}
	return readInstant(value)
}

func readInstant(value any) error {
	if text, isText := value.(string); isText {
		_, err := time.Parse(time.RFC3339Nano, text)
		return err
	}
	return nil
}

// Operations are all operations, by path and method.
func (d *Document) Operations() []*Operation { return d.operations }

// Resolve follows a reference, if the object is one.
func (d *Document) Resolve(object map[string]any) map[string]any {
	for range 10 { // chains are short; a circle ends
		reference, ok := object["$ref"].(string)
		if !ok {
			return object
		}
		var at any = d.root
		for _, name := range strings.Split(strings.TrimPrefix(reference, "#/"), "/") {
			next, _ := at.(map[string]any)
			at = next[unescape(name)]
		}
		object, _ = at.(map[string]any)
	}
	return object
}

// Find is the operation that a request means, nil where there is none. The path is as it is sent, without a query. known
// says whether the path takes any method.
func (d *Document) Find(method, path string) (found *Operation, known bool) {
	segments := strings.Split(path, "/")
	best := -1
	for _, o := range d.operations {
		fixed := o.matches(segments)
		if fixed < 0 {
			continue
		}
		known = true
		if o.Method == method && fixed > best {
			found, best = o, fixed
		}
	}
	return found, known
}

// matches counts the segments that are the same, or is -1 where the path is another one.
func (o *Operation) matches(segments []string) int {
	if len(segments) != len(o.segments) {
		return -1
	}
	fixed := 0
	for i, segment := range o.segments {
		switch {
		case segment == segments[i]:
			fixed++
		case !strings.HasPrefix(segment, "{") || segments[i] == "":
			return -1
		}
	}
	return fixed
}

// Exchange is a request and its answer.
type Exchange struct {
	Request *http.Request
	Sent    []byte // the body of the request
	Status  int
	Header  http.Header
	Body    []byte
}

// Check says where the answer is not what the document promises. Where the API was content, the request is held to the
// document too: what it takes must be written there.
func (d *Document) Check(e Exchange) error {
	operation, known := d.Find(e.Request.Method, e.Request.URL.EscapedPath())
	if operation == nil {
		switch {
		case e.Request.Method == http.MethodOptions && e.Status == http.StatusNoContent:
			return nil // it says in Allow what the path takes
		case known && e.Status != http.StatusMethodNotAllowed, e.Status != http.StatusNotFound && e.Status != http.StatusMethodNotAllowed:
			return fmt.Errorf("status %d, and the document has no %s %s", e.Status, e.Request.Method, e.Request.URL.Path)
		}
		return d.checkProblem(e)
	}
	promised, ok := operation.answers[strconv.Itoa(e.Status)]
	if !ok {
		return fmt.Errorf("%s: the document has no status %d", operation.ID, e.Status)
	}
	if err := promised.check(e); err != nil {
		return fmt.Errorf("%s: status %d: %w", operation.ID, e.Status, err)
	}
	if e.Status >= http.StatusBadRequest {
		return d.checkProblem(e)
	}
	if err := operation.checkRequest(e); err != nil {
		return fmt.Errorf("%s was taken, but %w", operation.ID, err)
	}
	return nil
}

// checkProblem demands what holds for all errors beyond their schema.
func (d *Document) checkProblem(e Exchange) error {
	if got := e.Header.Get("Content-Type"); got != problemType {
		return fmt.Errorf("status %d comes as %q and not as a problem: %.200q", e.Status, got, e.Body)
	}
	if err := validate(d.problem, e.Body); err != nil {
		return fmt.Errorf("the problem of status %d: %w", e.Status, err)
	}
	var p struct {
		Type      string `json:"type"`
		Status    int    `json:"status"`
		Code      string `json:"code"`
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal(e.Body, &p); err != nil {
		return err
	}
	// An answer that is given again is the first one, with the id of the first request.
	named := p.RequestID == e.Header.Get("X-Request-Id") || e.Header.Get("Idempotency-Replayed") == "true"
	if p.Status != e.Status || !strings.HasSuffix(p.Type, ":"+p.Code) || !named {
		return fmt.Errorf("the problem does not go with its answer: %s", e.Body)
	}
	return nil
}

func (r response) check(e Exchange) error {
	kind := e.Header.Get("Content-Type")
	schema, ok := r.content[kind]
	if !ok {
		return fmt.Errorf("the document has no content of type %q", kind)
	}
	for _, h := range r.headers {
		values := e.Header.Values(h.name)
		if h.required && len(values) == 0 {
			return fmt.Errorf("the header %s is missing", h.name)
		}
		for _, value := range values {
			if err := h.schema.Validate(value); err != nil {
				return fmt.Errorf("the header %s: %w", h.name, err)
			}
		}
	}
	if !strings.HasSuffix(kind, "json") {
		return schema.Validate(string(e.Body))
	}
	return validate(schema, e.Body)
}

func (o *Operation) checkRequest(e Exchange) error {
	switch {
	case o.body == nil && len(e.Sent) > 0:
		return fmt.Errorf("the document has no body for it: %.200q", e.Sent)
	case o.body != nil && len(bytes.TrimSpace(e.Sent)) == 0:
		if o.BodyRequired {
			return fmt.Errorf("the document demands a body")
		}
	case o.body != nil:
		if err := validate(o.body, e.Sent); err != nil {
			return fmt.Errorf("its body is not as documented: %w", err)
		}
	}
	query, err := url.ParseQuery(e.Request.URL.RawQuery)
	if err != nil {
		return fmt.Errorf("its query cannot be read: %w", err)
	}
	for name := range query {
		if !slices.ContainsFunc(o.Parameters, func(p Parameter) bool { return p.In == "query" && p.Name == name }) {
			return fmt.Errorf("the document has no parameter %q", name)
		}
	}
	segments := strings.Split(e.Request.URL.EscapedPath(), "/")
	for _, p := range o.Parameters {
		var value string
		switch p.In {
		case "query":
			value = query.Get(p.Name)
		case "header":
			value = e.Request.Header.Get(p.Name)
		case "path":
			value, err = url.PathUnescape(segments[slices.Index(o.segments, "{"+p.Name+"}")])
			if err != nil {
				return fmt.Errorf("its path cannot be read: %w", err)
			}
		}
		if value == "" { // an empty one counts as absent
			if p.Required {
				return fmt.Errorf("the document demands the parameter %q", p.Name)
			}
			continue
		}
		if err := p.check(value); err != nil {
			return fmt.Errorf("its parameter %q is not as documented: %w", p.Name, err)
		}
	}
	return nil
}

func (p Parameter) check(value string) error {
	if p.Schema["type"] == "integer" {
		return p.compiled.Validate(json.Number(value))
	}
	return p.compiled.Validate(value)
}

func validate(schema *jsonschema.Schema, body []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("it is no JSON: %w: %.200q", err, body)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%w: %.1000s", err, body)
	}
	return nil
}
