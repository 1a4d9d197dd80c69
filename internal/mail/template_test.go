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
		data   mail.AccessEnd
	}{
		{"en", mail.AccessEnd{UserName: "Ana <b> Müller", PlanName: "Pro & Team", EndedAt: end, TimeZone: "America/New_York"}},
		{"zh-CN", mail.AccessEnd{UserName: "林美", PlanName: "专业版", EndedAt: end, TimeZone: "Asia/Shanghai"}},
	}
	for _, c := range cases {
		for _, kind := range []string{mail.AccessExpired, mail.AccessEnded} {
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
		subject, _, html, err := mail.Render(mail.AccessExpired, locale, mail.AccessEnd{PlanName: "Pro"})
		require.NoError(t, err)
		require.Equal(t, "您的“Pro”使用权限已到期", subject, locale)
		require.Contains(t, html, `<html lang="zh-CN">`)
	}
	for _, locale := range english {
		subject, _, html, err := mail.Render(mail.AccessExpired, locale, mail.AccessEnd{PlanName: "Pro"})
		require.NoError(t, err)
		require.Equal(t, "Your access to Pro has ended", subject, locale)
		require.Contains(t, html, `<html lang="en">`)
	}
}

// Whoever let it end is not asked to renew.
func TestRenderEndedAsksForNothing(t *testing.T) {
	t.Parallel()
	for locale, words := range map[string]string{"en": "renew", "zh-CN": "续订"} {
		_, text, html, err := mail.Render(mail.AccessEnded, locale, mail.AccessEnd{PlanName: "Pro"})
		require.NoError(t, err)
		require.NotContains(t, strings.ToLower(text+html), words)
		_, text, html, err = mail.Render(mail.AccessExpired, locale, mail.AccessEnd{PlanName: "Pro"})
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
		data := mail.AccessEnd{PlanName: "Pro", EndedAt: time.Date(2026, 11, 30, 18, 30, 59, 0, time.UTC), TimeZone: c.zone}
		_, text, html, err := mail.Render(mail.AccessExpired, "en", data)
		require.NoError(t, err)
		require.Contains(t, text, "ended on "+c.en+".", c.zone)
		require.Contains(t, html, strings.ReplaceAll(c.en, "+", "&#43;"), c.zone)
		_, text, _, err = mail.Render(mail.AccessExpired, "zh-CN", data)
		require.NoError(t, err)
		require.Contains(t, text, c.chinese, c.zone)
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]mail.AccessEnd{
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
	_, _, _, err := mail.Render("no_such_kind", "en", mail.AccessEnd{})
	require.ErrorIs(t, err, mail.ErrPermanent)
}
