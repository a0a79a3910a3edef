// Package client is a client's side of a session with an owner. A [Conn] is one connection. A [Connector] replaces it
// after a failure. Its table has a record of each lease, reference, watcher and offer, which each connection requests.
package client

import (
	"context"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Client makes the requests of a client and keeps its leases, references, watchers and offers. Its methods are safe for
// concurrent use.
type Client struct {
	*Connector
	manifests transfer.Manifests
}

// New returns a client that is not connected yet.
func New(config Config) *Client { return &Client{Connector: newConnector(config)} }

// List returns the owner's models.
func (c *Client) List(ctx context.Context) (message.Listed, error) {
	return listParts(func(ask message.List) (part message.Listed, err error) {
		err = c.Request(ctx, Request{Op: message.OpList, Body: ask}, &part)
		return part, err
	})
}

// listParts requests the parts of a list in order and joins them.
func listParts(request func(message.List) (message.Listed, error)) (all message.Listed, err error) {
	var ask message.List
	for {
		part, err := request(ask)
		if err != nil {
			return all, err
		}
		if n := len(all.Models); n > 0 && len(part.Models) > 0 && all.Models[n-1].Name == part.Models[0].Name {
			all.Models[n-1].Versions = append(all.Models[n-1].Versions, part.Models[0].Versions...)
			part.Models = part.Models[1:]
		}
		all.Models = append(all.Models, part.Models...)
		all.Loading = append(all.Loading, part.Loading...)
		all.NotAdopted = append(all.NotAdopted, part.NotAdopted...)
		all.Incomplete = append(all.Incomplete, part.Incomplete...)
		next, err := nextPart(ask, part)
		if err != nil || next == nil {
			return all, err
		}
		ask = *next
	}
}

// nextPart returns the request for the part of a list that follows the answer to ask; nil if it was the last one.
func nextPart(ask message.List, part message.Listed) (*message.List, error) {
	switch {
	case part.Next == "":
		return nil, nil
	case part.Next < ask.After, part.Next == ask.After && part.NextVersion >= ask.AfterVersion:
		return nil, fmt.Errorf("%w: answer: the list is not in order", status.ErrProtocol)
	}
	return &message.List{After: part.Next, AfterVersion: part.NextVersion}, nil
}
