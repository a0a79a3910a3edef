//go:build unix

package proctest

import (
	"encoding/json"

	"github.com/stretchr/testify/require"
)

// Op is a command of a role: a function that runs in the child. Its argument and result are encoded as JSON.
type Op[S, In, Out any] struct {
	role *Role[S]
	name string
}

// NewOp adds a command to a role. A child runs its commands one at a time.
func NewOp[S, In, Out any](role *Role[S], name string, do func(s *S, in In) (Out, error)) Op[S, In, Out] {
	if _, ok := role.ops[name]; ok {
		panic("proctest: role " + role.name + " has two commands " + name)
	}
	role.ops[name] = func(s *S, raw json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(raw, &in); err != nil {
			return nil, err
		}
		return do(s, in)
	}
	return Op[S, In, Out]{role, name}
}

// Ask runs the command in the child and returns its result. An error is an [*Error]; out is then the value that the
// function returned with it. The test fails if the process ends before it answers.
func (o Op[S, In, Out]) Ask(p *Process[S], in In) (out Out, err error) {
	p.t.Helper()
	o.Send(p, in)
	a := p.receive(o.name)
	if len(a.Out) > 0 {
		require.NoError(p.t, json.Unmarshal(a.Out, &out), o.name)
	}
	if a.Error != nil {
		a.Error.sentinels = o.role.sentinels
		return out, a.Error
	}
	return out, nil
}

// Send starts the command in the child and does not wait for the answer. The process is expected to end, and must not
// receive another command.
func (o Op[S, In, Out]) Send(p *Process[S], in In) {
	p.t.Helper()
	raw, err := json.Marshal(in)
	require.NoError(p.t, err)
	p.send(command{Op: o.name, In: raw})
}

// Must is like Ask. The test fails if the command fails.
func (o Op[S, In, Out]) Must(p *Process[S], in In) Out {
	p.t.Helper()
	out, err := o.Ask(p, in)
	require.NoError(p.t, err, o.name)
	return out
}
