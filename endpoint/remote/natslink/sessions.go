package natslink

import (
	"context"
	"crypto/tls"
	"maps"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// recheckEvery is the interval at which admitted clients are checked again.
const recheckEvery = time.Second

// session holds the credentials of an admitted client.
type session struct {
	token string
	state *tls.ConnectionState // nil without TLS
}

func (a *allowed) record(id uint64, s session) {
	if s.token == "" && s.state == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[id] = s
}

// run disconnects clients that may no longer stay, until ctx ends.
func (a *allowed) run(ctx context.Context, stays func(token string, state *tls.ConnectionState) bool) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ns := a.listener.Load()
		a.forgetClosed(ns)
		for id, s := range a.snapshot() {
			if stays(s.token, s.state) {
				continue
			}
			_ = ns.DisconnectClientByID(id) // fails for a client that has left
			a.forget(id)
		}
	}
}

func (a *allowed) snapshot() map[uint64]session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.sessions)
}

func (a *allowed) forget(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, id)
}

// forgetClosed removes the sessions of clients that have left, if they outnumber the connected clients.
func (a *allowed) forgetClosed(ns *server.Server) {
	recorded := a.snapshot()
	if len(recorded) <= 2*ns.NumClients()+16 {
		return
	}
	open, err := ns.Connz(&server.ConnzOptions{Limit: 1 << 20})
	if err != nil {
		return // try again at the next check
	}
	for _, c := range open.Conns {
		delete(recorded, c.Cid)
	}
	for id := range recorded {
		a.forget(id)
	}
}
