// Package mail sends mail by SMTP and writes what the mails say.
package mail

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// SendTimeout bounds one Send from the dial to the last answer. A lease on a delivery must be longer.
const SendTimeout = 30 * time.Second

// Sender sends mail through one SMTP server, over a connection of its own for each message. It is safe for concurrent use.
type Sender struct {
	host, address      string
	username, password string
	implicitTLS        bool
	loopback           bool
	from               mail.Address
}

// Message is one mail to one recipient.
type Message struct {
	From    mail.Address // the zero value takes the sender's own
	To      mail.Address
	Subject string
	Text    string
	HTML    string // "" sends plain text only
	// MessageID is "left@right" without angle brackets. It must stay the same when a delivery is tried again, so that the
	// receiver can recognise a duplicate.
	MessageID string
	Headers   map[string]string // further headers; those that this package writes are refused
}

// New reads an SMTP URL: smtp://[user:password@]host[:587] takes TLS when the server offers it, and none on a loopback
// address; smtps://[user:password@]host[:465] speaks TLS from the start. Without TLS a password is sent to loopback only.
// "?from=Name <address>" sets the sender; the default is no-reply at the host. Errors never show the URL.
func New(smtpURL string) (*Sender, error) {
	u, err := url.Parse(smtpURL)
	if err != nil {
		return nil, errors.New("reading the SMTP URL: it is not a URL")
	}
	s := &Sender{host: u.Hostname(), username: u.User.Username()}
	s.password, _ = u.User.Password()
	port := u.Port()
	switch u.Scheme {
	case "smtp":
		port = orDefault(port, "587")
	case "smtps":
		s.implicitTLS, port = true, orDefault(port, "465")
	default:
		return nil, errors.New("reading the SMTP URL: its scheme must be smtp or smtps")
	}
	if n, err := strconv.Atoi(port); s.host == "" || err != nil || n < 1 || n > 65535 {
		return nil, errors.New("reading the SMTP URL: it needs a host, and a port from 1 to 65535 if any")
	}
	if u.Path != "" && u.Path != "/" || u.Fragment != "" {
		return nil, errors.New("reading the SMTP URL: it must have no path and no fragment")
	}
	s.address = net.JoinHostPort(s.host, port)
	ip := net.ParseIP(s.host)
	s.loopback = s.host == "localhost" || ip != nil && ip.IsLoopback()

	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("reading the SMTP URL: its query cannot be read")
	}
	for key := range query {
		if key != "from" {
			return nil, errors.New("reading the SMTP URL: the only parameter is from")
		}
	}
	s.from = mail.Address{Name: "Termkeeper", Address: "no-reply@" + s.host}
	if ip != nil {
		s.from.Address = "no-reply@localhost"
	}
	if from := query.Get("from"); from != "" {
		parsed, err := mail.ParseAddress(from)
		if err != nil {
			return nil, errors.New("reading the SMTP URL: from is not a mail address")
		}
		s.from = *parsed
	}
	if err := checkAddress("from", s.from); err != nil {
		return nil, fmt.Errorf("reading the SMTP URL: %w", err)
	}
	return s, nil
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// Send delivers the message to the server within SendTimeout. A nil error means that the server took it. Any other is one
// of ErrPermanent, ErrTemporary, ErrUnavailable and ErrAmbiguous, and carries neither credentials nor addresses. When the
// context ends before the message was complete, the error is ErrTemporary and the context's own as well.
func (s *Sender) Send(ctx context.Context, message Message) error {
	if message.From.Address == "" {
		message.From = s.from
	}
	msg, err := compose(message)
	if err != nil {
		return fmt.Errorf("writing a mail: %w", err)
	}
	plainAddresses := isASCII(message.From.Address) && isASCII(message.To.Address)
	if err := s.send(ctx, msg, plainAddresses); err != nil {
		return fmt.Errorf("sending a mail: %w", err)
	}
	return nil
}

func (s *Sender) send(ctx context.Context, msg *gomail.Msg, plainAddresses bool) error {
	bounded, cancel := context.WithTimeout(ctx, SendTimeout)
	defer cancel()

	// The connection is dialed here and not by go-mail, which leaves it open when the greeting or the login fails, and
	// which renews its own deadline at every step: closing it is what bounds the whole exchange.
	hangUp := func() {}
	defer func() { hangUp() }()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := s.dial(ctx)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(bounded, func() { _ = conn.Close() })
		hangUp = func() { stop(); _ = conn.Close() }
		return conn, nil
	}

	client, err := s.client(dial, plainAddresses)
	if err != nil {
		return fmt.Errorf("%w: setting up the client: %w", ErrUnavailable, err)
	}
	session, err := client.DialToSMTPClientWithContext(bounded)
	if err != nil {
		return dialError(ctx, err)
	}
	err = client.SendWithSMTPClient(session, msg)
	if msg.IsDelivered() {
		_ = session.Quit() // the mail was taken: what the server says to goodbye no longer matters
		return nil
	}
	return sendError(ctx, err)
}

func (s *Sender) dial(ctx context.Context) (net.Conn, error) {
	if s.implicitTLS {
		dialer := tls.Dialer{Config: &tls.Config{ServerName: s.host, MinVersion: tls.VersionTLS12}}
		return dialer.DialContext(ctx, "tcp", s.address)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", s.address)
}

func (s *Sender) client(dial gomail.DialContextFunc, plainAddresses bool) (*gomail.Client, error) {
	policy, auth := gomail.TLSOpportunistic, gomail.SMTPAuthAutoDiscover
	if s.loopback && !s.implicitTLS {
		policy, auth = gomail.NoTLS, gomail.SMTPAuthPlainNoEnc
	}
	options := []gomail.Option{
		gomail.WithDialContextFunc(dial), gomail.WithTimeout(SendTimeout), gomail.WithTLSPolicy(policy),
		// Neither NOOP before nor RSET after: a failing RSET would report a mail as lost that the server took.
		gomail.WithoutNoop(), gomail.WithoutRset(),
	}
	if s.username != "" {
		options = append(options, gomail.WithSMTPAuth(auth), gomail.WithUsername(s.username), gomail.WithPassword(s.password))
	}
	if plainAddresses {
		// Asked for without need, SMTPUTF8 makes some relays refuse a next hop that lacks it.
		options = append(options, gomail.WithoutSMTPUTF8())
	}
	return gomail.NewClient(s.host, options...)
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > 127 }) < 0
}
