package payment

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	currentSecret = "whsec_current_0123456789abcdef"
	oldSecret     = "whsec_old_0123456789abcdefghij"
)

var signedBody = []byte(`{"id":"evt_1","object":"event"}`)

// mac is Stripe's v1 scheme written out again, so that the test does not lean on the library under test.
func mac(secret string, at time.Time, body []byte) string {
	m := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(m, "%d.%s", at.Unix(), body)
	return hex.EncodeToString(m.Sum(nil))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	both := []string{currentSecret, oldSecret}
	header := func(secret string, at time.Time) string {
		return fmt.Sprintf("t=%d,v1=%s", at.Unix(), mac(secret, at, signedBody))
	}
	flipped := func(s string, i int) string {
		b := []byte(s)
		if b[i] == '0' {
			b[i] = '1'
		} else {
			b[i] = '0'
		}
		return string(b)
	}
	good := header(currentSecret, now)
	other := strings.Repeat("ab", 32)

	cases := map[string]struct {
		body    []byte
		header  string
		secrets []string
		want    error
		by      string
	}{
		"current secret":                    {header: good, by: currentSecret},
		"old secret":                        {header: header(oldSecret, now), by: oldSecret},
		"old secret after rotation":         {header: header(oldSecret, now), secrets: []string{currentSecret}, want: ErrBadSignature},
		"several v1, the last is good":      {header: fmt.Sprintf("t=%d,v1=%s,v1=%s", now.Unix(), other, mac(oldSecret, now, signedBody)), by: oldSecret},
		"several v1, the first is good":     {header: good + ",v1=" + other + ",v0=xyz", by: currentSecret},
		"v1 that is not hex beside a good":  {header: good + ",v1=zz", by: currentSecret},
		"spaces after the commas":           {header: strings.ReplaceAll(good, ",", ", "), by: currentSecret},
		"only v0":                           {header: strings.Replace(good, "v1=", "v0=", 1), want: ErrNoSignature},
		"no v1":                             {header: fmt.Sprintf("t=%d", now.Unix()), want: ErrNoSignature},
		"no time":                           {header: "v1=" + mac(currentSecret, now, signedBody), want: ErrNoSignature},
		"time is no number":                 {header: "t=now,v1=" + other, want: ErrNoSignature},
		"time overflows":                    {header: "t=99999999999999999999,v1=" + other, want: ErrNoSignature},
		"empty header":                      {header: "", want: ErrNoSignature},
		"commas only":                       {header: ",,,=,", want: ErrNoSignature},
		"empty v1":                          {header: fmt.Sprintf("t=%d,v1=", now.Unix()), want: ErrBadSignature},
		"one byte of the body flipped":      {body: []byte(flipped(string(signedBody), 9)), header: good, want: ErrBadSignature},
		"one digit of the signature":        {header: flipped(good, len(good)-1), want: ErrBadSignature},
		"signature cut short":               {header: good[:len(good)-2], want: ErrBadSignature},
		"time changed after signing":        {header: strings.Replace(good, fmt.Sprint(now.Unix()), fmt.Sprint(now.Unix()+1), 1), want: ErrBadSignature},
		"300 s old":                         {header: header(currentSecret, now.Add(-300*time.Second)), by: currentSecret},
		"301 s old":                         {header: header(currentSecret, now.Add(-301*time.Second)), want: ErrTimestamp},
		"300 s ahead":                       {header: header(currentSecret, now.Add(300*time.Second)), by: currentSecret},
		"301 s ahead":                       {header: header(currentSecret, now.Add(301*time.Second)), want: ErrTimestamp},
		"a year ahead":                      {header: header(currentSecret, now.AddDate(1, 0, 0)), want: ErrTimestamp},
		"farthest time there is":            {header: header(currentSecret, time.Unix(1<<62, 0)), want: ErrTimestamp},
		"wrong secret and too old":          {header: header("whsec_somebody_else_0123456789", now.Add(-time.Hour)), want: ErrBadSignature},
		"no secrets":                        {header: good, secrets: []string{}, want: ErrBadSignature},
		"signed with the empty key":         {header: header("", now), secrets: []string{""}, want: ErrBadSignature},
		"signed with a blank key":           {header: header(strings.Repeat(" ", 30), now), secrets: []string{strings.Repeat(" ", 30)}, want: ErrBadSignature},
		"signed with a short key":           {header: header("whsec_short", now), secrets: []string{"whsec_short"}, want: ErrBadSignature},
		"empty key listed beside a good":    {header: header("", now), secrets: []string{"", currentSecret}, want: ErrBadSignature},
		"good key listed after a short one": {header: good, secrets: []string{"short", currentSecret}, by: currentSecret},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, secrets := c.body, c.secrets
			if body == nil {
				body = signedBody
			}
			if secrets == nil {
				secrets = both
			}
			fingerprint, err := Verify(body, c.header, secrets, now)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
				require.Empty(t, fingerprint)
				return
			}
			require.NoError(t, err)
			sum := sha256.Sum256([]byte(c.by))
			require.Equal(t, hex.EncodeToString(sum[:])[:8], fingerprint)
		})
	}
}

// Half a second beyond the tolerance is beyond it, although the header counts whole seconds.
func TestVerifyToleranceCountsFractions(t *testing.T) {
	t.Parallel()
	signed := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	header := fmt.Sprintf("t=%d,v1=%s", signed.Unix(), mac(currentSecret, signed, signedBody))
	_, err := Verify(signedBody, header, []string{currentSecret}, signed.Add(300*time.Second+time.Nanosecond))
	require.ErrorIs(t, err, ErrTimestamp)
}

func FuzzVerify(f *testing.F) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f.Add(fmt.Sprintf("t=%d,v1=%s", now.Unix(), strings.Repeat("ab", 32)))
	f.Add("t=,v1=")
	f.Add(",=,t=1=2,v1==")
	f.Fuzz(func(t *testing.T, header string) {
		_, err := Verify(signedBody, header, []string{currentSecret}, now)
		if !strings.Contains(strings.ToLower(header), mac(currentSecret, now, signedBody)[:16]) && err == nil {
			t.Fatalf("accepted %q", header)
		}
	})
}
