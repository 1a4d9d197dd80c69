package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
)

const (
	// maxDepth of a body; ours need four levels.
	maxDepth = 16
	// maxFieldErrors are told at once; a body of a million wrong fields must not make an answer of its size.
	maxFieldErrors = 50
	// maxPointer is the longest pointer, in bytes. Every value of the body gets one, so below a name of half a megabyte a
	// list of zeros would cost a hundred gigabytes of copying, and an answer could be fifty times its question.
	maxPointer = 512
)

// given are the names of the top-level fields of a body, so that a PATCH can tell null from absent.
type given map[string]bool

// bind reads a JSON object into the struct that into points at. It refuses unknown and repeated fields, wrong types and
// whatever follows the object, and says where by JSON pointers. An empty body counts as {}. Durations are strings in
// Go's syntax, instants are RFC 3339 and come out in UTC at microseconds; null is taken by pointers only.
func bind(c echo.Context, into any) (given, error) {
	body, err := io.ReadAll(c.Request().Body)
	if err != nil {
		return nil, unreadable(err)
	}
	return decode(body, into)
}

// unreadable tells a body that is too large from one that did not arrive.
func unreadable(err error) error {
	if p := problemOf(err); p.Status == http.StatusRequestEntityTooLarge {
		return p
	}
	return problem(http.StatusBadRequest, "unreadable_body", "The body did not arrive as a whole.")
}

func decode(body []byte, into any) (given, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return given{}, nil
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, problem(http.StatusBadRequest, "invalid_json", "The body is not one JSON object in UTF-8.")
	}
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	b := binder{tokens: tokens}
	tree := b.read("", 0)
	if object, ok := tree.(map[string]any); ok && len(b.errors) == 0 {
		b.object(object, reflect.ValueOf(into).Elem(), "")
		if len(b.errors) == 0 {
			present := make(given, len(object))
			for name := range object {
				present[name] = true
			}
			return present, nil
		}
	} else if !ok && len(b.errors) == 0 {
		return nil, problem(http.StatusBadRequest, "invalid_json", "The body is not one JSON object in UTF-8.")
	}
	slices.SortStableFunc(b.errors, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return nil, invalid(b.errors...)
}

type binder struct {
	tokens *json.Decoder
	errors []FieldError
}

func (b *binder) wrong(pointer, detail string) {
	if len(b.errors) < maxFieldErrors {
		b.errors = append(b.errors, FieldError{pointer, detail})
	}
}

// read builds the tree of the next value: map[string]any, []any, string, json.Number, bool or nil. The body is known to
// be valid JSON, so an error of the decoder cannot come.
func (b *binder) read(pointer string, depth int) any {
	token, err := b.tokens.Token()
	if err != nil {
		b.wrong(pointer, "cannot be read")
		return nil
	}
	delim, nested := token.(json.Delim)
	if !nested {
		return token
	}
	if depth > maxDepth {
		b.wrong(pointer, "is nested too deeply")
	}
	deep := depth > maxDepth
	if delim == '[' {
		list := []any{}
		for i := 0; b.tokens.More(); i++ {
			if value := b.read(child(pointer, strconv.Itoa(i), deep), depth+1); !deep {
				list = append(list, value)
			}
		}
		_, _ = b.tokens.Token() // the closing bracket
		return list
	}
	object := map[string]any{}
	for b.tokens.More() {
		key, _ := b.tokens.Token()
		name, _ := key.(string)
		at := child(pointer, name, deep)
		if _, twice := object[name]; twice {
			b.wrong(at, "is there twice")
		}
		if value := b.read(at, depth+1); !deep {
			object[name] = value
		}
	}
	_, _ = b.tokens.Token() // the closing brace
	return object
}

// child is the pointer one level down. Below the deepest level, and where they are long, pointers no longer grow: they name
// what the wrong value is in.
func child(pointer, name string, deep bool) string {
	if deep || len(pointer)+len(name) > maxPointer {
		return pointer
	}
	return pointer + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func (b *binder) object(object map[string]any, into reflect.Value, pointer string) {
	fields := map[string]reflect.Value{}
	for i := range into.NumField() {
		name, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		fields[name] = into.Field(i)
	}
	for name, value := range object {
		at := child(pointer, name, false)
		if field, known := fields[name]; known && name != "" {
			b.value(value, field, at)
		} else {
			b.wrong(at, "is no field here")
		}
	}
}

// value puts one value of the tree into a field: a struct, pointer, slice, string, bool, int64, instant or duration.
func (b *binder) value(value any, into reflect.Value, pointer string) {
	if into.Kind() == reflect.Pointer {
		if value != nil {
			into.Set(reflect.New(into.Type().Elem()))
			b.value(value, into.Elem(), pointer)
		}
		return
	}
	switch target := into.Addr().Interface().(type) {
	case *time.Time:
		b.instant(value, target, pointer)
		return
	case *time.Duration:
		b.duration(value, target, pointer)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		if object, ok := value.(map[string]any); ok {
			b.object(object, into, pointer)
			return
		}
		b.wrong(pointer, "must be an object")
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			b.wrong(pointer, "must be a list")
			return
		}
		into.Set(reflect.MakeSlice(into.Type(), len(list), len(list)))
		for i, element := range list {
			b.value(element, into.Index(i), child(pointer, strconv.Itoa(i), false))
		}
	case reflect.String:
		text, ok := value.(string)
		switch {
		case !ok:
			b.wrong(pointer, "must be a string")
		case strings.ContainsRune(text, 0): // PostgreSQL's text cannot hold it
			b.wrong(pointer, "must not contain the character U+0000")
		default:
			into.SetString(text)
		}
	case reflect.Bool:
		truth, ok := value.(bool)
		if !ok {
			b.wrong(pointer, "must be true or false")
			return
		}
		into.SetBool(truth)
	case reflect.Int64:
		number, _ := value.(json.Number)
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil {
			b.wrong(pointer, "must be a whole number")
			return
		}
		into.SetInt(n)
	default:
		panic(fmt.Sprintf("bind cannot fill a %s", into.Type())) // a mistake in this package
	}
}

func (b *binder) instant(value any, into *time.Time, pointer string) {
	text, _ := value.(string)
	at, detail := parseInstant(text)
	if detail != "" {
		b.wrong(pointer, detail)
		return
	}
	*into = at
}

func (b *binder) duration(value any, into *time.Duration, pointer string) {
	text, _ := value.(string)
	d, err := time.ParseDuration(text)
	if err != nil || d%time.Microsecond != 0 {
		b.wrong(pointer, "must be a duration like 30s, 72h or 720h, to the microsecond")
		return
	}
	*into = d
}
