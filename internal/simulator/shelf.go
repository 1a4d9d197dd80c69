package simulator

import (
	"net/http"
	"slices"
	"strconv"
)

// shelf keeps objects in the order in which they were made, so that a page of a list costs what is on it, however long
// the list is.
type shelf[T any] struct {
	entries  []entry[T]     // oldest first
	position map[string]int // in entries, before any were taken off the front
	taken    int            // off the front
}

type entry[T any] struct {
	id    string
	thing T
}

// put adds an object, or replaces the one of that id where it stands.
func (s *shelf[T]) put(id string, thing T) {
	if at, ok := s.position[id]; ok {
		s.entries[at-s.taken].thing = thing
		return
	}
	if s.position == nil {
		s.position = map[string]int{}
	}
	s.position[id] = s.taken + len(s.entries)
	s.entries = append(s.entries, entry[T]{id, thing})
}

func (s *shelf[T]) get(id string) (thing T, ok bool) {
	at, ok := s.position[id]
	if !ok {
		return thing, false
	}
	return s.entries[at-s.taken].thing, true
}

// takeOldest takes the oldest object off; there must be one.
func (s *shelf[T]) takeOldest() T {
	oldest := s.entries[0]
	delete(s.position, oldest.id)
	s.entries[0] = entry[T]{}
	s.entries = s.entries[1:]
	s.taken++
	return oldest.thing
}

// remove takes an object off, wherever it stands.
func (s *shelf[T]) remove(id string) {
	at, ok := s.position[id]
	if !ok {
		return
	}
	s.entries = slices.Delete(s.entries, at-s.taken, at-s.taken+1)
	delete(s.position, id)
	for i := at - s.taken; i < len(s.entries); i++ {
		s.position[s.entries[i].id] = i + s.taken
	}
}

// all are the objects, oldest first.
func (s *shelf[T]) all() []T {
	things := make([]T, 0, len(s.entries))
	for _, e := range s.entries {
		things = append(things, e.thing)
	}
	return things
}

// list answers with one page of what fits, newest first, cut by limit, starting_after and ending_before.
func list[T any](f form, path string, from *shelf[T], fits func(T) bool, write func(T) any) answer {
	limit := 10
	if f.has("limit") {
		n, err := strconv.Atoi(f.text("limit"))
		if err != nil || n < 1 || n > 100 {
			return refusal(http.StatusBadRequest, "", "limit", "Invalid limit: must be between 1 and 100")
		}
		limit = n
	}
	at, step, cursor := len(from.entries)-1, -1, "" // newest first
	switch after, before := f.text("starting_after"), f.text("ending_before"); {
	case after != "" && before != "":
		return refusal(http.StatusBadRequest, "", "starting_after", "You may only specify one of these parameters: starting_after, ending_before.")
	case after != "":
		cursor = "starting_after"
	case before != "":
		cursor, step = "ending_before", 1
	}
	if cursor != "" {
		position, ok := from.position[f.text(cursor)]
		if !ok {
			return noSuch("object", f.text(cursor), cursor)
		}
		at = position - from.taken + step
	}
	var page []T
	for ; at >= 0 && at < len(from.entries) && len(page) <= limit; at += step {
		if thing := from.entries[at].thing; fits(thing) {
			page = append(page, thing)
		}
	}
	more := len(page) > limit
	page = page[:min(len(page), limit)]
	if step > 0 {
		slices.Reverse(page)
	}
	data := make([]any, 0, len(page))
	for _, thing := range page {
		data = append(data, write(thing))
	}
	return found(map[string]any{"object": "list", "data": data, "has_more": more, "url": path})
}
