package mail

import (
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"strings"
	"text/template"
	"time"
	_ "time/tzdata" // the zones of the users, on machines that have none
)

// The mails there are.
const (
	// AccessStarted: the access began for the first time.
	AccessStarted = "access_started"
	// AccessReturned: the access is back after it had ended.
	AccessReturned = "access_returned"
	// AccessEnding: the access ends soon and nothing will renew it. It asks to renew.
	AccessEnding = "access_ending"
	// AccessEndingAsSet: the access ends soon because it was set to. It is a notice and asks for nothing.
	AccessEndingAsSet = "access_ending_as_set"
	// AccessEndingUnpaid: the access ends soon because the renewal was not paid. It asks to pay.
	AccessEndingUnpaid = "access_ending_unpaid"
	// AccessExpired: the access ended and nothing renewed it. It asks to renew.
	AccessExpired = "access_expired"
	// AccessEnded: the access ended because it was set to. It asks for nothing.
	AccessEnded = "access_ended"
	// AccessCanceled: the access was ended before its date. It asks for nothing.
	AccessCanceled = "access_canceled"
	// PaymentFailed: a payment failed; it says until when there is access all the same.
	PaymentFailed = "payment_failed"
	// PaymentRecovered: what was missing was paid.
	PaymentRecovered = "payment_recovered"
)

// Kinds lists the mails there are.
func Kinds() []string {
	return []string{
		AccessStarted, AccessReturned, AccessEnding, AccessEndingAsSet, AccessEndingUnpaid, AccessExpired, AccessEnded, AccessCanceled,
		PaymentFailed, PaymentRecovered,
	}
}

// The locales there are.
const (
	English           = "en"
	SimplifiedChinese = "zh-CN"
)

// Notice is what the mails tell. Each kind takes what it needs of it.
type Notice struct {
	UserName    string // "" when unknown
	PlanName    string
	TimeZone    string    // IANA name; UTC when it is empty or unknown
	End         time.Time // the end that the mail speaks of, past or near
	AccessUntil time.Time // until when there is access as things stand
	Lifetime    bool      // access has no end
	DaysLeft    int       // until End by the user's calendar: 0 is today, 1 tomorrow
}

// A template is one text file: its subject, an empty line, its paragraphs. The HTML is made from the same paragraphs, so
// that the two can't say different things. A paragraph whose lines are "label: value" becomes a table in it.
//
//go:embed templates
var files embed.FS

var (
	texts  = parseTexts()
	layout = htmltemplate.Must(htmltemplate.ParseFS(files, "templates/layout.html"))
)

// parseTexts reads every text by "<locale>/<kind>". A broken one is a mistake in the program, so it stops it.
func parseTexts() map[string]*template.Template {
	parsed := map[string]*template.Template{}
	for _, locale := range []string{English, SimplifiedChinese} {
		for _, kind := range Kinds() {
			name := locale + "/" + kind
			parsed[name] = template.Must(template.ParseFS(files, "templates/"+name+".txt"))
		}
	}
	return parsed
}

// Render writes the mail of that kind in that locale: any Chinese is zh-CN, every other language is en. The error is
// ErrPermanent: an unknown kind, or a name with a line break or a control character.
func Render(kind, locale string, data Notice) (subject, text, html string, err error) {
	locale = supported(locale)
	parsed, ok := texts[locale+"/"+kind]
	if !ok {
		return "", "", "", fmt.Errorf("rendering a mail: %w: there is none of this kind", ErrPermanent)
	}
	if err := errors.Join(checkLine("user name", data.UserName), checkLine("plan name", data.PlanName)); err != nil {
		return "", "", "", fmt.Errorf("rendering %s: %w", kind, err)
	}

	var written strings.Builder
	words := struct {
		UserName, PlanName, End, AccessUntil string
		Lifetime                             bool
		DaysLeft                             int
	}{
		strings.TrimSpace(data.UserName), strings.TrimSpace(data.PlanName), instant(data.End, data.TimeZone, locale),
		instant(data.AccessUntil, data.TimeZone, locale), data.Lifetime, max(data.DaysLeft, 0),
	}
	if err := parsed.Execute(&written, words); err != nil {
		return "", "", "", fmt.Errorf("rendering %s: %w: %w", kind, ErrPermanent, err)
	}
	subject, text, _ = strings.Cut(written.String(), "\n\n")

	var page strings.Builder
	err = layout.Execute(&page, struct {
		Language, Subject string
		Paragraphs        []paragraph
	}{locale, subject, paragraphs(text)})
	if err != nil {
		return "", "", "", fmt.Errorf("rendering %s: %w: %w", kind, ErrPermanent, err)
	}
	return subject, text, page.String(), nil
}

// paragraph is prose, or rows of a table.
type paragraph struct {
	Prose string
	Rows  []row
}

type row struct{ Label, Value string }

// paragraphs reads the written text. Prose is one line; what has several is a table.
func paragraphs(text string) []paragraph {
	var list []paragraph
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if !strings.Contains(block, "\n") {
			list = append(list, paragraph{Prose: block})
			continue
		}
		var rows []row
		for line := range strings.SplitSeq(block, "\n") {
			label, value, found := strings.Cut(line, "：")
			if !found || strings.Contains(label, ": ") {
				label, value, _ = strings.Cut(line, ": ")
			}
			rows = append(rows, row{label, value})
		}
		list = append(list, paragraph{Rows: rows})
	}
	return list
}

// supported maps a locale as browsers and systems write it (zh, zh-Hans, zh_CN.UTF-8, en-GB) to one that has templates.
func supported(locale string) string {
	language, _, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(locale), "_", "-"), "-")
	if strings.EqualFold(language, "zh") {
		return SimplifiedChinese
	}
	return English
}

// instant writes an instant in the user's zone, to the minute, with the zone's offset: abbreviations such as CST mean
// several zones.
func instant(at time.Time, zone, locale string) string {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		location = time.UTC
	}
	at = at.In(location)
	if locale == SimplifiedChinese {
		return at.Format("2006年1月2日 15:04") + "（" + offset(at) + "）"
	}
	return at.Format("2 January 2006, 15:04") + " (" + offset(at) + ")"
}

func offset(at time.Time) string {
	_, seconds := at.Zone()
	if seconds == 0 {
		return "UTC"
	}
	sign := '+'
	if seconds < 0 {
		sign, seconds = '-', -seconds
	}
	if minutes := seconds / 60 % 60; minutes != 0 {
		return fmt.Sprintf("UTC%c%d:%02d", sign, seconds/3600, minutes)
	}
	return fmt.Sprintf("UTC%c%d", sign, seconds/3600)
}
