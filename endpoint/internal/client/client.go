// Package client is a client's side of a session with an owner. A [Conn] is one connection. A [Connector] replaces it
// after a failure and resumes what the client keeps: leases, references, watchers and offers.
package client

import (
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
)

// Client makes the requests of a client and keeps its leases, references, watchers and offers. Its methods are safe for
// concurrent use.
type Client struct {
	*Connector
	references references
	manifests  transfer.Manifests
}

// New returns a client that is not connected yet.
func New(config Config) *Client {
	c := &Client{Connector: newConnector(config)}
	c.references.Connector = c.Connector
	return c
}

// LoseObjects ends all references because their objects no longer exist.
func (c *Client) LoseObjects() {
	for _, r := range All[*Reference](c.Connector) {
		r.stale(status.StaleObjectMissing, "")
	}
}
