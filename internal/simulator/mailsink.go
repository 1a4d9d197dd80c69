package simulator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-message/mail"
	"github.com/emersion/go-smtp"
)

const (
	maxMessages    = 10_000 // kept; the oldest go first
	maxMessageSize = 10 << 20
)

// Message is a mail that the sink took.
type Message struct {
	From       string    `json:"from"` // the From header, "Name <address>"
	To         string    `json:"to"`   // the recipients of the envelope, joined by ", "
	Subject    string    `json:"subject"`
	Text       string    `json:"text"`
	HTML       string    `json:"html"`
	MessageID  string    `json:"message_id"` // without angle brackets
	ReceivedAt time.Time `json:"received_at"`
}

// The steps of an SMTP session at which the sink can be told to fail.
const (
	AtHello  = "hello"  // the greeting is answered with the code
	AtSender = "sender" // MAIL FROM
	AtRcpt   = "rcpt"   // RCPT TO
	AtData   = "data"   // after the content
	// CutAfterData closes the connection after the final dot, without an answer. The message is kept: the case in which
	// a second attempt makes a duplicate.
	CutAfterData = "cut_after_data"
	// CutInData closes the connection while the content comes. Nothing is kept.
	CutInData = "cut_in_data"
)

// MailFault makes the next Count sessions (0 is one) fail at a step.
type MailFault struct {
	At    string `json:"at"`
	Code  int    `json:"code"` // 4xx or 5xx; not for the cuts
	Count int    `json:"count"`
}

type mailSink struct {
	mu       sync.Mutex
	messages []Message
	faults   []MailFault
}

func (m *mailSink) addFault(f MailFault) error {
	switch f.At {
	case AtHello, AtSender, AtRcpt, AtData:
		if f.Code < 400 || f.Code > 599 {
			return errors.New("the code of a mail fault is from 400 to 599")
		}
	case CutAfterData, CutInData:
	default:
		return fmt.Errorf("unknown step of a mail fault: it is one of %v", []string{AtHello, AtSender, AtRcpt, AtData, CutAfterData, CutInData})
	}
	f.Count = max(f.Count, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = append(m.faults, f)
	return nil
}

// fault takes one fault of that step, if any waits.
func (m *mailSink) fault(at string) (MailFault, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.faults, func(f MailFault) bool { return f.At == at })
	if i < 0 {
		return MailFault{}, false
	}
	f := m.faults[i]
	if m.faults[i].Count--; m.faults[i].Count == 0 {
		m.faults = slices.Delete(m.faults, i, i+1)
	}
	return f, true
}

// refuse returns the answer of a fault of that step, or nil. It repeats the address, as real servers do.
func (m *mailSink) refuse(at, address string) error {
	f, ok := m.fault(at)
	if !ok {
		return nil
	}
	return &smtp.SMTPError{Code: f.Code, EnhancedCode: smtp.EnhancedCode{f.Code / 100, 0, 0}, Message: "told to refuse <" + address + ">"}
}

func (m *mailSink) keep(message Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages = append(m.messages, message)
	if len(m.messages) > maxMessages {
		m.messages = slices.Delete(m.messages, 0, len(m.messages)-maxMessages)
	}
}

func (m *mailSink) list() []Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Message{}, m.messages...)
}

func (m *mailSink) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages = nil
}

func (m *mailSink) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /messages", func(w http.ResponseWriter, r *http.Request) {
		messages := m.list()
		if to := r.URL.Query().Get("to"); to != "" {
			messages = slices.DeleteFunc(messages, func(m Message) bool { return !strings.Contains(m.To, to) })
		}
		writeJSON(w, found(messages))
	})
	mux.HandleFunc("DELETE /messages", func(w http.ResponseWriter, _ *http.Request) {
		m.clear()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /_sim/mail-faults", func(w http.ResponseWriter, r *http.Request) {
		var in MailFault
		if !read(w, r, &in) {
			return
		}
		if err := m.addFault(in); err != nil {
			badRequest(w, err.Error())
			return
		}
		writeJSON(w, found(map[string]any{}))
	})
	return mux
}

// NewSession answers the greeting of a client.
func (m *mailSink) NewSession(c *smtp.Conn) (smtp.Session, error) {
	if err := m.refuse(AtHello, c.Hostname()); err != nil {
		return nil, err
	}
	return &mailSession{sink: m, conn: c}, nil
}

// mailSession is one SMTP connection.
type mailSession struct {
	sink *mailSink
	conn *smtp.Conn
	from string
	to   []string
}

func (s *mailSession) Reset()        { s.from, s.to = "", nil }
func (s *mailSession) Logout() error { return nil }

func (s *mailSession) Mail(from string, _ *smtp.MailOptions) error {
	s.from = from
	return s.sink.refuse(AtSender, from)
}

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	if err := s.sink.refuse(AtRcpt, to); err != nil {
		return err
	}
	s.to = append(s.to, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	if _, ok := s.sink.fault(CutInData); ok {
		_, _ = io.ReadFull(r, make([]byte, 16))
		return s.conn.Conn().Close()
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.sink.refuse(AtData, strings.Join(s.to, ", ")); err != nil {
		return err
	}
	message, err := decodeMail(raw)
	if err != nil {
		return &smtp.SMTPError{Code: 554, EnhancedCode: smtp.EnhancedCode{5, 6, 0}, Message: "the message cannot be read"}
	}
	if message.From == "" {
		message.From = s.from
	}
	message.To, message.ReceivedAt = strings.Join(s.to, ", "), time.Now().UTC()
	s.sink.keep(message)
	if _, ok := s.sink.fault(CutAfterData); ok {
		return s.conn.Conn().Close()
	}
	return nil
}

// decodeMail reads the headers and the first text and HTML parts.
func decodeMail(raw []byte) (Message, error) {
	reader, err := mail.CreateReader(bytes.NewReader(raw))
	if err != nil {
		return Message{}, fmt.Errorf("reading a mail: %w", err)
	}
	defer func() { _ = reader.Close() }()
	var m Message
	if m.Subject, err = reader.Header.Subject(); err != nil {
		return Message{}, fmt.Errorf("reading the subject of a mail: %w", err)
	}
	if m.MessageID, err = reader.Header.MessageID(); err != nil {
		return Message{}, fmt.Errorf("reading the id of a mail: %w", err)
	}
	if from, err := reader.Header.AddressList("From"); err == nil && len(from) > 0 {
		m.From = from[0].Address
		if from[0].Name != "" {
			m.From = from[0].Name + " <" + from[0].Address + ">"
		}
	}
	for {
		part, err := reader.NextPart()
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return Message{}, fmt.Errorf("reading a part of a mail: %w", err)
		}
		body, err := io.ReadAll(part.Body)
		if err != nil {
			return Message{}, fmt.Errorf("reading a part of a mail: %w", err)
		}
		kind, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		content := strings.ReplaceAll(string(body), "\r\n", "\n")
		switch {
		case kind == "text/html" && m.HTML == "":
			m.HTML = content
		case (kind == "text/plain" || kind == "") && m.Text == "":
			m.Text = content
		}
	}
}
