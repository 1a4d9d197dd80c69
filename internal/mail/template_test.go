package mail_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/mail"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestRenderGolden(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 11, 30, 18, 30, 0, 0, time.UTC)
	cases := []struct {
		locale string
		data   mail.Notice
	}{
		{"en", mail.Notice{UserName: "Ana <b> Müller", PlanName: "Pro & Team", End: end, AccessUntil: end.AddDate(0, 1, 0), DaysLeft: 3, TimeZone: "America/New_York"}},
		{"zh-CN", mail.Notice{UserName: "林美", PlanName: "专业版", End: end, AccessUntil: end.AddDate(0, 1, 0), DaysLeft: 3, TimeZone: "Asia/Shanghai"}},
	}
	for _, c := range cases {
		for _, kind := range mail.Kinds() {
			t.Run(kind+"/"+c.locale, func(t *testing.T) {
				t.Parallel()
				subject, text, html, err := mail.Render(kind, c.locale, c.data)
				require.NoError(t, err)
				golden(t, kind+"."+c.locale+".txt", "Subject: "+subject+"\n\n"+text)
				golden(t, kind+"."+c.locale+".html", html)
			})
		}
	}
}

// The days are those of a person's calendar, and a lifetime has no date.
func TestRenderDaysAndLifetimes(t *testing.T) {
	t.Parallel()
	for days, words := range map[int][2]string{-1: {"ends today", "将于今天"}, 0: {"ends today", "将于今天"}, 1: {"ends tomorrow", "将于明天"}, 7: {"ends in 7 days", "将于 7 天后"}} {
		for _, kind := range []string{mail.AccessEnding, mail.AccessEndingAsSet, mail.AccessEndingUnpaid} {
			for i, locale := range []string{mail.English, mail.SimplifiedChinese} {
				subject, text, _, err := mail.Render(kind, locale, mail.Notice{PlanName: "Pro", DaysLeft: days})
				require.NoError(t, err)
				require.Contains(t, subject, words[i])
				require.Contains(t, text, words[i])
			}
		}
	}
	for locale, words := range map[string]string{mail.English: "Access until: no end\n", mail.SimplifiedChinese: "有效期至：永久有效\n"} {
		for _, kind := range []string{mail.AccessStarted, mail.AccessReturned, mail.PaymentRecovered} {
			_, text, _, err := mail.Render(kind, locale, mail.Notice{PlanName: "Pro", Lifetime: true})
			require.NoError(t, err)
			require.Contains(t, text, words, kind)
		}
	}
}

// A name that looks like a label stays in its place.
func TestRenderRows(t *testing.T) {
	t.Parallel()
	for _, locale := range []string{mail.English, mail.SimplifiedChinese} {
		_, _, html, err := mail.Render(mail.AccessExpired, locale, mail.Notice{PlanName: "Pro: A：B"})
		require.NoError(t, err)
		require.Contains(t, html, "<td>Pro: A：B</td>")
		require.Equal(t, 2, strings.Count(html, "<tr>"))
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestRenderLocales(t *testing.T) {
	t.Parallel()
	chinese := []string{"zh", "zh-CN", "zh_CN", "zh-Hans", "ZH-hans-SG", "zh_CN.UTF-8", " zh "}
	english := []string{"", "en", "en-GB", "de", "fr_FR", "zhx", "../zh-CN", "\x00"}
	for _, locale := range chinese {
		subject, _, html, err := mail.Render(mail.AccessExpired, locale, mail.Notice{PlanName: "Pro"})
		require.NoError(t, err)
		require.Equal(t, "您的“Pro”使用权限已到期", subject, locale)
		require.Contains(t, html, `<html lang="zh-CN">`)
	}
	for _, locale := range english {
		subject, _, html, err := mail.Render(mail.AccessExpired, locale, mail.Notice{PlanName: "Pro"})
		require.NoError(t, err)
		require.Equal(t, "Your access to Pro has ended", subject, locale)
		require.Contains(t, html, `<html lang="en">`)
	}
}

// Whoever let it end is not asked to renew.
func TestRenderEndedAsksForNothing(t *testing.T) {
	t.Parallel()
	for locale, words := range map[string]string{"en": "renew", "zh-CN": "续订"} {
		for _, kind := range []string{mail.AccessEnded, mail.AccessEndingAsSet, mail.AccessCanceled} {
			_, text, html, err := mail.Render(kind, locale, mail.Notice{PlanName: "Pro"})
			require.NoError(t, err)
			require.NotContains(t, strings.ToLower(text+html), words)
		}
		_, text, html, err := mail.Render(mail.AccessExpired, locale, mail.Notice{PlanName: "Pro"})
		require.NoError(t, err)
		require.Contains(t, text, words)
		require.Contains(t, html, words)
	}
}

func TestRenderInstants(t *testing.T) {
	t.Parallel()
	cases := []struct{ zone, en, chinese string }{
		{"", "30 November 2026, 18:30 (UTC)", "2026年11月30日 18:30（UTC）"},
		{"No/Where", "30 November 2026, 18:30 (UTC)", "2026年11月30日 18:30（UTC）"},
		{"Local", "30 November 2026, 18:30 (UTC)", "2026年11月30日 18:30（UTC）"},
		{"../../etc/passwd", "30 November 2026, 18:30 (UTC)", "2026年11月30日 18:30（UTC）"},
		{"Asia/Shanghai", "1 December 2026, 02:30 (UTC+8)", "2026年12月1日 02:30（UTC+8）"},
		{"America/New_York", "30 November 2026, 13:30 (UTC-5)", "2026年11月30日 13:30（UTC-5）"},
		{"Asia/Kolkata", "1 December 2026, 00:00 (UTC+5:30)", "2026年12月1日 00:00（UTC+5:30）"},
		{"America/St_Johns", "30 November 2026, 15:00 (UTC-3:30)", "2026年11月30日 15:00（UTC-3:30）"},
	}
	for _, c := range cases {
		data := mail.Notice{PlanName: "Pro", End: time.Date(2026, 11, 30, 18, 30, 59, 0, time.UTC), TimeZone: c.zone}
		_, text, html, err := mail.Render(mail.AccessExpired, "en", data)
		require.NoError(t, err)
		require.Contains(t, text, "Ended: "+c.en+"\n", c.zone)
		require.Contains(t, html, strings.ReplaceAll(c.en, "+", "&#43;"), c.zone)
		_, text, _, err = mail.Render(mail.AccessExpired, "zh-CN", data)
		require.NoError(t, err)
		require.Contains(t, text, c.chinese, c.zone)
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]mail.Notice{
		"line break in the user's name":  {UserName: "Ana\nBcc: x@example.com", PlanName: "Pro"},
		"line break in the plan's name":  {PlanName: "Pro\r\nBcc: x@example.com"},
		"U+0000":                         {UserName: "A\x00", PlanName: "Pro"},
		"a line separator":               {UserName: "A\u2028B", PlanName: "Pro"},
		"turned writing direction":       {UserName: "A\u202eB", PlanName: "Pro"},
		"a name that is not UTF-8":       {UserName: "A\xff", PlanName: "Pro"},
		"a name longer than a line gets": {UserName: strings.Repeat("x", 901), PlanName: "Pro"},
	} {
		_, _, _, err := mail.Render(mail.AccessExpired, "en", data)
		require.ErrorIs(t, err, mail.ErrPermanent, name)
	}
	_, _, _, err := mail.Render("no_such_kind", "en", mail.Notice{})
	require.ErrorIs(t, err, mail.ErrPermanent)
}
