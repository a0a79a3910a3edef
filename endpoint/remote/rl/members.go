package rl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Member is a trainer or worker that is present.
type Member struct {
	// Name is unique in its run.
	Name string `json:"name"`
	// Role is "trainer" or "worker".
	Role string `json:"role"`
	// Host and PID are where the member runs, as it says itself.
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Since is when it joined.
	Since time.Time `json:"since"`
	// Version is that of the parameters it published or fetched last; -1 before the first.
	Version int64 `json:"version"`
	// Shared reports that it uses the parameters in the owner's memory.
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

// presence says again and again that a member is there. Each message lives for Options.Presence, so a member that was
// killed is gone after that time.
type presence struct {
	run     *run
	role    string
	since   time.Time
	version atomic.Int64
	shared  atomic.Bool
	stop    context.CancelFunc
	done    chan struct{}
}

func (r *run) join(ctx context.Context, role string) (*presence, error) {
	loop, stop := context.WithCancel(context.Background())
	p := &presence{run: r, role: role, since: time.Now(), stop: stop, done: make(chan struct{})}
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
		if err := p.say(ctx); err != nil && ctx.Err() == nil {
			p.run.log.Debug("rl: presence could not be said", "run", p.run.opts.Run, "error", err)
		}
	}
}

func (p *presence) say(ctx context.Context) error {
	host, _ := os.Hostname()
	text, err := json.Marshal(Member{
		Name: p.run.opts.Name, Role: p.role, Host: host, PID: os.Getpid(), Since: p.since,
		Version: p.version.Load(), Shared: p.shared.Load(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.run.opts.Presence/3)
	defer cancel()
	// The key-value interface can limit the life of a key when it is made, but not when it is written again.
	msg := &nats.Msg{Subject: "$KV.RL_" + p.run.opts.Run + "." + p.run.opts.Name, Data: text}
	_, err = p.run.js.PublishMsg(ctx, msg, jetstream.WithMsgTTL(p.run.opts.Presence.Truncate(time.Second)))
	return err
}

// leave takes the member off the list.
func (p *presence) leave() {
	p.stop()
	<-p.done
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.run.members.Delete(ctx, p.run.opts.Name) // else its time ends
}

// Members returns the trainers and workers that are present, by name.
func (r *run) Members(ctx context.Context) ([]Member, error) {
	keys, err := r.memberKeys(ctx)
	if err != nil {
		return nil, err
	}
	var members []Member
	for _, key := range keys {
		var entry jetstream.KeyValueEntry
		err := natslink.Ask(ctx, func(ctx context.Context) (err error) {
			entry, err = r.members.Get(ctx, key)
			return err
		})
		if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrKeyDeleted) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var m Member
		if json.Unmarshal(entry.Value(), &m) == nil && m.Name == key {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members, nil
}

// memberKeys lists the names of those who are present. A list that ends before its end is asked for again.
func (r *run) memberKeys(ctx context.Context) (keys []string, err error) {
	err = natslink.Ask(ctx, func(ctx context.Context) error {
		keys = keys[:0]
		watcher, err := r.members.WatchAll(ctx, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
		if err != nil {
			return err
		}
		defer func() { _ = watcher.Stop() }() // it is not asked any more
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case entry, open := <-watcher.Updates():
				if !open {
					return fmt.Errorf("the list of members ended: %w", nats.ErrTimeout)
				}
				if entry == nil {
					return nil
				}
				keys = append(keys, entry.Key())
			}
		}
	})
	return keys, err
}
