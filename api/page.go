package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
)

const (
	defaultLimit = 50
	maxLimit     = 200
	cursorTag    = 8 // bytes of the check in front of a cursor
)

// page is one answer of a list.
type page struct {
	Data       any     `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

// pageOf reads limit and cursor. list names the list and its filters, because a cursor is only good for the list that it came
// from. The cursor, if there is one, is put into after.
func pageOf(c echo.Context, list string, after any) (limit int, err error) {
	limit = defaultLimit
	if text := c.QueryParam("limit"); text != "" {
		limit, err = strconv.Atoi(text)
		if err != nil || limit < 1 || limit > maxLimit {
			return 0, invalid(FieldError{"/limit", "must be a whole number from 1 to 200"})
		}
	}
	if text := c.QueryParam("cursor"); text != "" && !openCursor(list, text, after) {
		return 0, invalid(FieldError{"/cursor", "must be a next_cursor that this list gave with the same filters"})
	}
	return limit, nil
}

// answerPage writes one page. The store was asked for one row more than limit; whether it came says whether there is a
// next page, and last makes its cursor.
func answerPage[T any](c echo.Context, list string, rows []T, limit int, last func(T) any, show func(T) any) error {
	answer := page{}
	if len(rows) > limit {
		rows = rows[:limit]
		cursor, err := sealCursor(list, last(rows[limit-1]))
		if err != nil {
			return err
		}
		answer.NextCursor = &cursor
	}
	data := make([]any, len(rows))
	for i, row := range rows {
		data[i] = show(row)
	}
	answer.Data = data
	return c.JSON(http.StatusOK, answer)
}

// sealCursor makes the position opaque, with a check that tells a made-up or misplaced cursor. It guards against mistakes and is
// no secret: a cursor only chooses where a list begins that its reader may read anyway.
func sealCursor(list string, position any) (string, error) {
	body, err := json.Marshal(position)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(append(cursorCheck(list, body), body...)), nil
}

func openCursor(list, cursor string, position any) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) <= cursorTag {
		return false
	}
	body := raw[cursorTag:]
	if bytes.Contains(body, []byte(`\u0000`)) { // no key has it, and PostgreSQL's text cannot hold it
		return false
	}
	return string(cursorCheck(list, body)) == string(raw[:cursorTag]) && json.Unmarshal(body, position) == nil
}

func cursorCheck(list string, body []byte) []byte {
	sum := sha256.Sum256([]byte("termkeeper cursor\x00" + list + "\x00" + string(body)))
	return sum[:cursorTag]
}

// filtered names a list with its filters.
func filtered(list string, filters ...string) string {
	return list + "\x00" + strings.Join(filters, "\x00")
}
