package openapitest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pb33f/jsonschema/v6"
)

// parser goes through a document. Answers and requests have compilers of their own: the API takes more ways to write an
// instant than it writes.
type parser struct {
	document          *Document
	answers, requests *jsonschema.Compiler
}

// place is an object of the document and the pointer to it.
type place struct {
	object  map[string]any
	pointer string
}

func (p *parser) enter(at place, names ...string) place {
	for _, name := range names {
		object, _ := at.object[name].(map[string]any)
		at = place{object, at.pointer + "/" + escape(name)}
		if reference, ok := object["$ref"].(string); ok {
			at = place{p.document.Resolve(object), strings.TrimPrefix(reference, "#")}
		}
	}
	return at
}

func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func unescape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
}

func (p *parser) compile(c *jsonschema.Compiler, at place) (*jsonschema.Schema, error) {
	schema, err := c.Compile(location + "#" + at.pointer)
	if err != nil {
		return nil, fmt.Errorf("compiling the schema at %s: %w", at.pointer, err)
	}
	return schema, nil
}

var methods = []string{"get", "put", "post", "patch", "delete", "head", "options", "trace"}

func (p *parser) paths() error {
	paths := p.enter(place{object: p.document.root}, "paths")
	for _, path := range slices.Sorted(maps.Keys(paths.object)) {
		item := p.enter(paths, path)
		for _, method := range methods {
			if _, ok := item.object[method]; !ok {
				continue
			}
			o, err := p.operation(item, path, method)
			if err != nil {
				return fmt.Errorf("%s %s: %w", method, path, err)
			}
			p.document.operations = append(p.document.operations, o)
		}
	}
	return nil
}

func (p *parser) operation(item place, path, method string) (*Operation, error) {
	at := p.enter(item, method)
	o := &Operation{Method: strings.ToUpper(method), Path: path, segments: strings.Split(path, "/"), answers: map[string]response{}}
	o.ID, _ = at.object["operationId"].(string)
	o.Role, _ = at.object["x-required-role"].(string)
	if tags, _ := at.object["tags"].([]any); len(tags) > 0 {
		o.Tag, _ = tags[0].(string)
	}
	if security, said := at.object["security"].([]any); said {
		o.Public = len(security) == 0
	}
	for _, level := range []place{item, at} {
		list, _ := level.object["parameters"].([]any)
		for i := range list {
			parameter, err := p.parameter(level, i)
			if err != nil {
				return nil, err
			}
			o.Parameters = append(o.Parameters, parameter)
		}
	}
	if body := p.enter(at, "requestBody"); body.object != nil {
		o.BodyRequired, _ = body.object["required"].(bool)
		schema := p.enter(body, "content", "application/json", "schema")
		var err error
		if o.body, err = p.compile(p.requests, schema); err != nil {
			return nil, err
		}
		o.Body = schema.object
	}
	responses := p.enter(at, "responses")
	for status := range responses.object {
		promised, err := p.response(p.enter(responses, status))
		if err != nil {
			return nil, fmt.Errorf("status %s: %w", status, err)
		}
		o.answers[status] = promised
	}
	return o, nil
}

func (p *parser) parameter(level place, i int) (Parameter, error) {
	list, _ := level.object["parameters"].([]any)
	object, _ := list[i].(map[string]any)
	at := place{object, fmt.Sprintf("%s/parameters/%d", level.pointer, i)}
	if reference, ok := object["$ref"].(string); ok {
		at = place{p.document.Resolve(object), strings.TrimPrefix(reference, "#")}
	}
	schema := p.enter(at, "schema")
	parameter := Parameter{Schema: schema.object, Example: at.object["example"]}
	parameter.Name, _ = at.object["name"].(string)
	parameter.In, _ = at.object["in"].(string)
	parameter.Required, _ = at.object["required"].(bool)
	var err error
	parameter.compiled, err = p.compile(p.requests, schema)
	return parameter, err
}

func (p *parser) response(at place) (response, error) {
	promised := response{content: map[string]*jsonschema.Schema{}}
	content := p.enter(at, "content")
	for kind := range content.object {
		schema, err := p.compile(p.answers, p.enter(content, kind, "schema"))
		if err != nil {
			return response{}, err
		}
		promised.content[kind] = schema
	}
	headers := p.enter(at, "headers")
	for name := range headers.object {
		header := header{name: name}
		one := p.enter(headers, name)
		header.required, _ = one.object["required"].(bool)
		var err error
		if header.schema, err = p.compile(p.answers, p.enter(one, "schema")); err != nil {
			return response{}, err
		}
		promised.headers = append(promised.headers, header)
	}
	return promised, nil
}
