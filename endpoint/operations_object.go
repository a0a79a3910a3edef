package endpoint

import (
	"context"

	"github.com/sharedtensor/sharedtensor/wire"
)

func doObjectInfo(_ context.Context, r request) (reply, error) {
	var in wire.Object
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	info, err := r.session.server.objects.info(in.ID, r.session.id)
	if err != nil {
		return reply{}, err
	}
	info.Server = r.session.server.id
	return reply{body: info}, nil
}

func doObjectRelease(_ context.Context, r request) (reply, error) {
	var in wire.ReleaseObjects
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	var out wire.ObjectsReleased
	for _, id := range in.IDs {
		row := wire.ObjectReleased{ID: id}
		obj, left, err := s.objects.release(id, r.session.id)
		if err == nil {
			row.Released, row.Destroyed, row.Refs = true, left == 0, uint64(left)
			if row.Destroyed {
				s.letGo(obj)
			}
		}
		out.Objects = append(out.Objects, row)
	}
	return reply{body: out}, nil
}

// doObjectWatch makes the session hear of objects that the server destroys.
func doObjectWatch(_ context.Context, r request) (reply, error) {
	r.session.watchObjects(r.id)
	return reply{body: wire.WatchingObjects{}}, nil
}

// doObjectRefer gives the session one reference more.
func doObjectRefer(_ context.Context, r request) (reply, error) {
	var in wire.Object
	if err := r.decode(&in); err != nil {
		return reply{}, err
	}
	s := r.session.server
	if err := s.objects.referAgain(in.ID, r.session.id, s.opts.Limits.Objects); err != nil {
		return reply{}, err
	}
	info, err := s.objects.info(in.ID, r.session.id)
	if err != nil {
		return reply{}, err
	}
	info.Server = s.id
	return reply{body: info}, nil
}
