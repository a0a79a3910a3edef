package connector

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/link"
)

// lives is a dependent on at most one connection.
type lives struct {
	link  *link.Link
	ended bool
}

func (d *lives) NeedsResume(l *link.Link) bool { return d.link != l }

func (d *lives) Resume(_ context.Context, l *link.Link) error {
	d.link = l
	return nil
}

func (d *lives) Lost(l *link.Link) {
	if d.link == l {
		d.link = nil
	}
}

func (d *lives) End() { d.ended = true }

// Objects of a set move from one connection to the next and end with the client.
func TestSetFollowsConnections(t *testing.T) {
	var s Set[*lives]
	require.False(t, s.Needed())
	one, two := new(link.Link), new(link.Link)
	stays, moves := &lives{link: two}, &lives{link: one}
	require.True(t, s.Add(stays))
	require.True(t, s.Add(moves))
	require.True(t, s.Needed())

	s.Lost(one)
	require.Nil(t, moves.link)
	require.Equal(t, two, stays.link, "it was on another connection")
	jobs := s.Resume(two)
	require.Len(t, jobs, 1)
	require.NoError(t, allWhileAnswered(t.Context(), jobs))
	require.Empty(t, s.Resume(two))

	s.Remove(stays)
	require.Equal(t, 1, s.Len())
	s.End()
	require.True(t, moves.ended)
	require.False(t, stays.ended, "it was removed")
	require.False(t, s.Needed())
	require.False(t, s.Add(stays), "the client was closed")
}

// A closed client ends its dependents once and refuses requests.
func TestConnectorClosed(t *testing.T) {
	c := New(Config{Socket: "nowhere.sock"})
	var s Set[*lives]
	c.AddDependents(&s)
	d := new(lives)
	require.True(t, s.Add(d))
	changed := c.Changed()
	c.Close()
	c.Close()
	<-changed
	require.True(t, d.ended)
	state, server, _ := c.Standing()
	require.Equal(t, StateClosed, state)
	require.Empty(t, server)
	_, err := c.Connected(t.Context())
	require.ErrorContains(t, err, "client of nowhere.sock")
	c.Start(func() { t.Error("work is begun after Close") })
	c.OnNext(func(context.Context, *link.Link) error { t.Error("there is no connection"); return nil })
}
