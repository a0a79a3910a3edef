package natslink

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// relay sends requests under its own subjects for answers, and passes the answers on. The server refuses a request that
// names the subject of an answer in another account. Requests are sent in the order of the calls.
type relay struct {
	conn  *nats.Conn
	inbox string

	mu   sync.Mutex
	next uint64
	open map[string]relayed // by the last part of the subject
}

type relayed struct {
	client  *clientAccount
	reply   string // where the answers go
	answers int    // that may follow; unlimited answers end with one that has a status
	expires *time.Timer
}

// expected describes the answers to a request.
type expected struct {
	answers int // number of messages; an answer with a status ends them earlier
}

func newRelay(conn *nats.Conn) (*relay, error) {
	r := &relay{conn: conn, inbox: conn.NewInbox() + ".", open: make(map[string]relayed)}
	_, err := conn.Subscribe(r.inbox+"*", r.answer)
	return r, err
}

// send forwards a request or message of a client to a subject. The client repeats it if it is lost.
func (r *relay) send(client *clientAccount, subject string, msg *nats.Msg, want expected) {
	out := &nats.Msg{Subject: subject, Header: msg.Header, Data: msg.Data}
	if msg.Reply != "" {
		out.Reply = r.inbox + r.expect(client, msg.Reply, want)
	}
	_ = r.conn.PublishMsg(out) // the client repeats a lost request
}

// expect records a request and returns the last part of the subject for its answers.
func (r *relay) expect(client *clientAccount, reply string, want expected) string {
	client.open.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	token := strconv.FormatUint(r.next, 36)
	r.open[token] = relayed{client, reply, want.answers, time.AfterFunc(gateTimeout, func() { r.forget(token) })}
	return token
}

func (r *relay) forget(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endLocked(token)
}

func (r *relay) endLocked(token string) {
	if one, found := r.open[token]; found {
		one.expires.Stop()
		one.client.open.Add(-1)
		delete(r.open, token)
	}
}

// answer passes an answer on.
func (r *relay) answer(msg *nats.Msg) {
	token := strings.TrimPrefix(msg.Subject, r.inbox)
	r.mu.Lock()
	one, found := r.open[token]
	switch status := msg.Header.Get("Status"); {
	case !found:
	case status != "" || one.answers <= 1:
		r.endLocked(token)
	default:
		one.answers--
		r.open[token] = one
	}
	r.mu.Unlock()
	if found {
		_ = r.conn.PublishMsg(&nats.Msg{Subject: one.reply, Header: msg.Header, Data: msg.Data}) // the client repeats its request
	}
}
