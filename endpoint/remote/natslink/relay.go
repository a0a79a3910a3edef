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
	reply   string // where the answers go
	several bool   // answers follow until one has a status
	expires *time.Timer
}

func newRelay(conn *nats.Conn) (*relay, error) {
	r := &relay{conn: conn, inbox: conn.NewInbox() + ".", open: make(map[string]relayed)}
	_, err := conn.Subscribe(r.inbox+"*", r.answer)
	return r, err
}

// send forwards a request to a subject. With several, answers follow until one has a status.
func (r *relay) send(subject string, msg *nats.Msg, several bool) error {
	out := &nats.Msg{Subject: subject, Header: msg.Header, Data: msg.Data}
	if msg.Reply != "" {
		out.Reply = r.inbox + r.expect(msg.Reply, several)
	}
	return r.conn.PublishMsg(out)
}

// expect records a request and returns the last part of the subject for its answers.
func (r *relay) expect(reply string, several bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	token := strconv.FormatUint(r.next, 36)
	r.open[token] = relayed{reply, several, time.AfterFunc(gateTimeout, func() { r.forget(token) })}
	return token
}

func (r *relay) forget(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, token)
}

// answer passes an answer on.
func (r *relay) answer(msg *nats.Msg) {
	token := strings.TrimPrefix(msg.Subject, r.inbox)
	r.mu.Lock()
	one, found := r.open[token]
	if found && (!one.several || msg.Header.Get("Status") != "") {
		one.expires.Stop()
		delete(r.open, token)
	}
	r.mu.Unlock()
	if found {
		_ = r.conn.PublishMsg(&nats.Msg{Subject: one.reply, Header: msg.Header, Data: msg.Data}) // the client repeats its request
	}
}
