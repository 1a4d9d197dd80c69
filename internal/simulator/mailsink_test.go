package simulator_test

import (
	"encoding/json"
	"net/http"
	"net/smtp"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"termkeeper/internal/simulator"
)

const letter = "From: =?utf-8?q?M=C3=BCller?= <a@example.com>\r\nTo: someone\r\nSubject: =?utf-8?b?5oKo5aW9?=\r\nMessage-ID: <1@example.com>\r\n" +
	"MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n" +
	"--b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=E6=82=A8\r\n.dot\r\n" +
	"--b\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\nPHA+5oKoPC9wPg==\r\n--b--\r\n"

func post(t *testing.T, sim *simulator.Simulator, letter string, to ...string) error {
	t.Helper()
	u, err := url.Parse(sim.SMTPURL())
	require.NoError(t, err)
	return smtp.SendMail(u.Host, nil, "envelope@example.com", to, []byte(letter))
}

func TestMailSink(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	read := func(query string) []map[string]any {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, sim.MailURL()+"/messages"+query, nil)
		require.NoError(t, err)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		var messages []map[string]any
		require.NoError(t, json.NewDecoder(response.Body).Decode(&messages))
		require.NotNil(t, messages, "an empty list is [], not null")
		return messages
	}
	require.Empty(t, read(""))
	require.NoError(t, post(t, sim, letter, "b@example.com", "c@example.com"))
	require.NoError(t, post(t, sim, "Subject: plain\r\n\r\nbody\r\n", "d@example.com"))

	messages := read("")
	require.Len(t, messages, 2)
	require.NotEmpty(t, messages[0]["received_at"])
	delete(messages[0], "received_at")
	require.Equal(t, map[string]any{
		"from": "Müller <a@example.com>", "to": "b@example.com, c@example.com", "subject": "您好", "text": "您\n.dot", "html": "<p>您</p>",
		"message_id": "1@example.com",
	}, messages[0])
	require.Equal(t, "envelope@example.com", messages[1]["from"])
	require.Equal(t, "body\n", messages[1]["text"])
	require.Len(t, read("?to=d@example.com"), 1)

	call(t, http.MethodDelete, sim.MailURL()+"/messages", "", "", http.StatusNoContent)
	require.Empty(t, read(""))
}

func TestMailFaults(t *testing.T) {
	t.Parallel()
	sim := start(t, simulator.Options{})
	faults := sim.MailURL() + "/_sim/mail-faults"
	call(t, http.MethodPost, faults, "application/json", `{"at":"rcpt","code":451,"count":2}`, http.StatusOK)
	require.ErrorContains(t, post(t, sim, letter, "b@example.com"), "451")
	require.ErrorContains(t, post(t, sim, letter, "b@example.com"), "451")
	require.NoError(t, post(t, sim, letter, "b@example.com"))
	call(t, http.MethodPost, faults, "application/json", `{"at":"data","code":200}`, http.StatusBadRequest)
	call(t, http.MethodPost, faults, "application/json", `{"at":"dinner","code":450}`, http.StatusBadRequest)
	call(t, http.MethodPost, faults, "application/json", `{"when":"now"}`, http.StatusBadRequest)
	require.Len(t, sim.Messages(), 1)
}
