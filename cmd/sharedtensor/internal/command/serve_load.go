package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// loadPass is the outcome of one pass over all models.
type loadPass struct {
	published []string // names and versions: "llm version 2"
	failed    []string // names
	errs      []error  // one for each of failed
}

// err returns the joined errors of the pass, or nil if all models were loaded.
func (p *loadPass) err() error { return errors.Join(p.errs...) }

// loader loads all models of an owner in a background pass. It is used by one goroutine.
type loader struct {
	service *service
	ctx     context.Context
	cancel  context.CancelFunc
	passes  chan loadPass
	running bool
	again   bool // another pass follows the running one
	ended   int
}

func (s *service) newLoader(ctx context.Context) *loader {
	l := &loader{service: s, passes: make(chan loadPass, 1)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// start announces a pass to clients and begins it. If one is running, the new pass begins after it.
func (l *loader) start() {
	if l.running {
		l.again = true
		return
	}
	l.running = true
	loads := l.service.announce()
	go func() { l.passes <- l.service.loadAll(l.ctx, loads) }()
}

// end must be called after a pass was received. It starts the next pass if one was requested, and reports whether the
// ended pass was the first.
func (l *loader) end() (first bool) {
	l.running, l.ended = false, l.ended+1
	if l.again {
		l.again = false
		l.start()
	}
	return l.ended == 1
}

// stop cancels the running pass and waits for it. It reports whether a pass was running.
func (l *loader) stop() bool {
	l.cancel()
	if !l.running {
		return false
	}
	<-l.passes
	l.running = false
	return true
}

// announce lists all models as loading, so that clients wait for them.
func (s *service) announce() []*endpoint.Load {
	loads := make([]*endpoint.Load, len(s.models))
	for i, m := range s.models {
		loads[i], _ = s.server.AnnounceLoad(m.name, m.source()) // names were validated with the command line
	}
	return loads
}

// loadAll loads the announced models one after the other and publishes each when it is loaded. It continues after a
// failure and stops if ctx ends.
func (s *service) loadAll(ctx context.Context, loads []*endpoint.Load) (pass loadPass) {
	for i, m := range s.models {
		version, err := s.load(ctx, m, loads[i])
		switch {
		case ctx.Err() != nil:
			for _, load := range loads[i:] {
				load.Done()
			}
			return pass
		case err != nil:
			loads[i].Fail(err)
			pass.failed, pass.errs = append(pass.failed, m.name), append(pass.errs, err)
		default:
			loads[i].Done()
			pass.published = append(pass.published, fmt.Sprintf("%s version %d", m.name, version))
		}
	}
	return pass
}

// load loads and publishes a model.
func (s *service) load(ctx context.Context, m modelArg, load *endpoint.Load) (version uint64, err error) {
	if version, ok := s.unchanged[m.name]; ok { // an earlier owner has loaded it; a later pass loads it again
		delete(s.unchanged, m.name)
		return version, nil
	}
	sd, id, err := loadModel(ctx, s.device, m, s.stderr, func(done, total int64) {
		load.Progress(done, total)
		s.notify.Progress(m.name, done, total)
	})
	if err != nil {
		return 0, err
	}
	version, err = s.server.Publish(ctx, m.name, sd, endpoint.PublishOptions{Source: m.source(), SourceID: id, Digests: s.digests})
	return version, errors.Join(err, sd.Close()) // the server holds its own reference
}
