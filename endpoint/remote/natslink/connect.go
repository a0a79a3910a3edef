// Package natslink connects to NATS with the settings that this module needs, and embeds a NATS server for use without
// a cluster.
//
//	server, err := natslink.Start(natslink.ServerOptions{Store: dir})
//	conn, err := server.Connect()              // or natslink.Connect("nats://host:4222")
//	store, err := bins.Open(ctx, conn, bins.Options{Namespace: "rollouts"})
package natslink

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

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
