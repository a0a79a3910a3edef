package rl

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Member describes a trainer or worker that is present.
type Member struct {
	// Name is unique in its run.
	Name string `json:"name"`
	// Role is "trainer" or "worker".
	Role string `json:"role"`
	// Host and PID identify the member's process, as reported by the member.
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Since is when the member joined.
	Since time.Time `json:"since"`
	// Version is the version that the member published or fetched last, or -1 before the first.
	Version int64 `json:"version"`
	// Shared reports whether the member uses the parameters in the owner's memory.
	Shared bool `json:"shared"`
}

func openMembers(ctx context.Context, js jetstream.JetStream, o Options) (jetstream.KeyValue, error) {
	bucket := "RL_" + o.Run
	kv, err := js.KeyValue(ctx, bucket)
	if !errors.Is(err, jetstream.ErrBucketNotFound) {
		return kv, err
	}
	storage := jetstream.FileStorage
	if o.Memory {
		storage = jetstream.MemoryStorage
	}
	return js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: bucket, Description: "members of a sharedtensor training run", Storage: storage, Replicas: o.Replicas,
		LimitMarkerTTL: time.Second,
	})
}

// presence records periodically that a member is present. Each message expires after Options.Presence, so a killed
// member disappears.
type presence struct {
	run     *run
	role    string
	since   time.Time
	version atomic.Int64
	shared  atomic.Bool
	stop    context.CancelFunc
	done    chan struct{}

	id       string // distinguishes this member from others of the same name
	revision uint64 // of its newest message; 0 if unknown. Used by join, then repeat, then leave.
	replaced bool   // another member has taken the name
}

// memberMessage is the stored form of a member.
type memberMessage struct {
	Member
	ID string `json:"id"`
}

func (r *run) join(ctx context.Context, role string) (*presence, error) {
	loop, stop := context.WithCancel(context.Background())
	p := &presence{run: r, role: role, since: time.Now(), stop: stop, done: make(chan struct{}), id: nuid.Next()}
	p.version.Store(-1)
	if err := natslink.Ask(ctx, p.say); err != nil {
		stop()
		return nil, err
	}
	go p.repeat(loop)
	return p, nil
}

func (p *presence) repeat(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(p.run.opts.Presence / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := p.say(ctx)
		if p.replaced {
			p.run.log.Warn("rl: another member of the run has taken this name", "run", p.run.opts.Run, "name", p.run.opts.Name)
			return
		}
		if err != nil && ctx.Err() == nil {
			p.run.log.Debug("rl: could not record presence", "run", p.run.opts.Run, "error", err)
		}
	}
}

// say records that the member is present. The first message claims the name. Later ones fail if another member has
// claimed it since.
func (p *presence) say(ctx context.Context) error {
	host, _ := os.Hostname()
	text, err := json.Marshal(memberMessage{ID: p.id, Member: Member{
		Name: p.run.opts.Name, Role: p.role, Host: host, PID: os.Getpid(), Since: p.since,
		Version: p.version.Load(), Shared: p.shared.Load(),
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.run.opts.Presence/3)
	defer cancel()
	// The key-value interface can set a TTL when a key is created, but not when it is updated.
	msg := &nats.Msg{Subject: "$KV.RL_" + p.run.opts.Run + "." + p.run.opts.Name, Data: text}
	opts := []jetstream.PublishOpt{jetstream.WithMsgTTL(p.run.opts.Presence.Truncate(time.Second))}
	if p.revision != 0 {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(p.revision))
	}
	ack, err := p.run.js.PublishMsg(ctx, msg, opts...)
	if err == nil {
		p.revision = ack.Sequence
		return nil
	}
	if p.revision != 0 && !natslink.IsOutage(err) {
		return errors.Join(err, p.look(ctx))
	}
	return err
}

// look finds out why a message was refused: an earlier message was stored without an answer, the previous one has
// expired, or another member has taken the name.
func (p *presence) look(ctx context.Context) error {
	entry, err := p.run.members.Get(ctx, p.run.opts.Name)
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted) {
		p.revision = 0
		return nil
	}
	if err != nil {
		return err
	}
	var now memberMessage
	if err := json.Unmarshal(entry.Value(), &now); err != nil {
		return err
	}
	p.replaced = now.ID != p.id
	p.revision = entry.Revision()
	return nil
}

// leave removes the member from the list, unless another member has taken its name.
func (p *presence) leave() {
	p.stop()
	<-p.done
	if p.replaced || p.revision == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// Best effort: the message expires. The delete marker expires too.
	_ = p.run.members.Purge(ctx, p.run.opts.Name, jetstream.LastRevision(p.revision), jetstream.PurgeTTL(time.Second))
}

// Members returns the trainers and workers that are present, by name.
func (r *run) Members(ctx context.Context) (members []Member, err error) {
	prefix := "$KV.RL_" + r.opts.Run + "."
	for next, more := uint64(1), true; more; {
		var batch []*nats.Msg
		pending := 0
		err = natslink.Ask(ctx, func(ctx context.Context) error {
			batch, pending, err = r.presences.Read(ctx, prefix+">", next)
			return err
		})
		if err != nil {
			return nil, err
		}
		more = pending > 0 && len(batch) > 0
		for _, msg := range batch {
			sequence, err := natslink.Sequence(msg)
			if err != nil {
				return nil, err
			}
			next = sequence + 1
			// Markers of members that left or expired have no text.
			var m Member
			if json.Unmarshal(msg.Data, &m) == nil && prefix+m.Name == msg.Header.Get(jetstream.SubjectHeader) {
				members = append(members, m)
			}
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members, nil
}
