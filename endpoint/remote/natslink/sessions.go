package natslink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// recheckEvery is the interval at which admitted clients are checked again.
const recheckEvery = time.Second

// session holds the credentials of an admitted client.
type session struct {
	token string
	state *tls.ConnectionState // nil without TLS
	key   string
}

func (a *allowed) record(id uint64, s session) {
	if s.token == "" && s.state == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[id] = s
}

// run disconnects clients that may no longer stay or whose rights have changed, until ctx ends.
func (a *allowed) run(ctx context.Context, recheck func(token string, state *tls.ConnectionState) (Client, error)) {
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
			if now, err := recheck(s.token, s.state); err == nil && now.Key == s.key {
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

// TLSFiles are PEM files for connections with TLS. Empty fields are not used.
type TLSFiles struct {
	// CA contains the authorities of the servers, instead of those of the system.
	CA string
	// Cert and Key are the client certificate and its key.
	Cert, Key string
}

// Options returns the options of a connection. The files are read again for each connection.
func (f TLSFiles) Options() (opts []nats.Option) {
	if f.CA != "" {
		opts = append(opts, nats.RootCAs(f.CA))
	}
	if f.Cert != "" {
		opts = append(opts, nats.ClientCert(f.Cert, f.Key))
	}
	return opts
}

// Check returns an error if only one of a certificate and a key is set.
func (f TLSFiles) Check() error {
	if (f.Cert == "") != (f.Key == "") {
		return errors.New("a client certificate and its key belong together")
	}
	return nil
}

// Connect connects to the servers of url (comma-separated) with the settings that this module relies on, then opts. The
// caller closes the connection.
//
// It reconnects forever, while the default of NATS is two minutes. It does not buffer messages while disconnected: NATS
// would send them later, after their publisher has received an error.
func Connect(url string, opts ...nats.Option) (*nats.Conn, error) {
	conn, err := nats.Connect(url, append([]nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 200*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.Timeout(5 * time.Second),
		nats.PingInterval(20 * time.Second),
		nats.MaxPingsOutstanding(2),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return conn, nil
}

// maxPending is the number of pieces of a body that wait for their acknowledgement. More would only wait in the server.
const maxPending = 32

// JetStream returns the interface to the streams of a connection, which it borrows.
func JetStream(conn *nats.Conn) (jetstream.JetStream, error) {
	return jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending))
}
