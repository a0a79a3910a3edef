package inference

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

// platform is the platform reported for every model.
const platform = "sharedtensor"

// extensions returns the supported extensions of the protocol.
func (s *service) extensions() []string {
	list := []string{"binary_tensor_data", "parameters", "statistics", "model_repository", "model_configuration", "classification"}
	if s.shm {
		list = append(list, "system_shared_memory", "cuda_shared_memory")
	}
	return list
}

// ready returns nil if functions can be called.
func (s *service) ready() error {
	if len(s.env.Owner.Callers()) > 0 {
		return nil
	}
	_, err := s.env.Owner.Client()
	return err
}

// describe returns a model, which need not be ready, its versions, and the requested version.
func (s *service) describe(ctx context.Context, name, asked string) (m *model, versions []string, version string, err error) {
	if m, err = s.models.lookup(ctx, name); err != nil {
		return nil, nil, "", err
	}
	if version, err = s.models.choose(ctx, m, asked); err != nil {
		return nil, nil, "", err
	}
	versions, _, err = s.models.versionsOf(ctx, m, false)
	return m, versions, version, err
}

// modelReady reports whether a model can be called. It returns an error if the owner cannot be reached.
func (s *service) modelReady(ctx context.Context, name, version string) (bool, error) {
	m, err := s.models.find(ctx, name)
	if err == nil {
		_, err = s.models.choose(ctx, m, version)
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNotReady):
		return false, nil
	}
	return false, err
}

// config returns the known parts of a model's configuration.
func (s *service) config(ctx context.Context, name, version string) (*pb.ModelConfig, error) {
	m, versions, _, err := s.describe(ctx, name, version)
	if err != nil {
		return nil, err
	}
	c := &pb.ModelConfig{
		Name: m.name, Platform: platform, Backend: platform, ModelTransactionPolicy: &pb.ModelTransactionPolicy{Decoupled: m.stream},
		ResponseCache: &pb.ModelResponseCache{Enable: m.cached},
	}
	specific := &pb.ModelVersionPolicy_Specific{}
	for _, text := range versions {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			specific.Versions = append(specific.Versions, n)
		}
	}
	c.VersionPolicy = &pb.ModelVersionPolicy{PolicyChoice: &pb.ModelVersionPolicy_Specific_{Specific: specific}}
	if m.batcher != nil {
		c.MaxBatchSize = int32(min(m.batching.max, math.MaxInt32))
		c.SchedulingChoice = &pb.ModelConfig_DynamicBatching{DynamicBatching: &pb.ModelDynamicBatching{
			MaxQueueDelayMicroseconds: uint64(m.batching.delay / time.Microsecond),
		}}
	}
	for _, p := range m.inputs {
		c.Input = append(c.Input, &pb.ModelInput{Name: p.name, DataType: configType(p.datatype), Dims: m.dims(p), Optional: p.optional})
	}
	for _, p := range m.outputs {
		c.Output = append(c.Output, &pb.ModelOutput{Name: p.name, DataType: configType(p.datatype), Dims: m.dims(p)})
	}
	return c, nil
}

// dims returns the shape of a port in the configuration, which has no batch dimension if requests are joined.
func (m *model) dims(p port) []int64 {
	if m.batcher != nil && p.kind == tensorPort && p.shaped && len(p.shape) > 0 {
		return p.shape[1:]
	}
	return p.shape
}

// statistics returns the figures of a model, or of all models if name is empty.
func (s *service) statistics(ctx context.Context, name, version string) ([]*pb.ModelStatistics, error) {
	if name != "" {
		m, _, chosen, err := s.describe(ctx, name, version)
		if err != nil {
			return nil, err
		}
		return []*pb.ModelStatistics{m.stats.message(m.name, chosen)}, nil
	}
	models, err := s.models.all(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]*pb.ModelStatistics, 0, len(models))
	for _, m := range models {
		_, current, err := s.models.versionsOf(ctx, m, false)
		if err != nil {
			return nil, err
		}
		list = append(list, m.stats.message(m.name, current))
	}
	return list, nil
}

// indexed is an entry of the repository index.
type indexed struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// index lists the models; only the ready ones if onlyReady is set.
func (s *service) index(ctx context.Context, repository string, onlyReady bool) ([]indexed, error) {
	if err := checkRepository(repository); err != nil {
		return nil, err
	}
	models, err := s.models.all(ctx)
	if err != nil {
		return nil, err
	}
	list := []indexed{}
	for _, m := range models {
		versions, _, err := s.models.versionsOf(ctx, m, false)
		if err != nil {
			return nil, err
		}
		for _, v := range versions {
			row := indexed{Name: m.name, Version: v, State: "READY"}
			switch {
			case m.why != "":
				row.State, row.Reason = "UNAVAILABLE", m.why
			case s.models.isUnloaded(m.name):
				row.State, row.Reason = "UNAVAILABLE", "unloaded"
			}
			if !onlyReady || row.State == "READY" {
				list = append(list, row)
			}
		}
	}
	return list, nil
}

func checkRepository(name string) error {
	if name != "" {
		return fmt.Errorf("%w: repository %q: omit the repository, the owner is the only one", ErrNotFound, clip(name))
	}
	return nil
}

// setLoaded loads or unloads a model; see catalog.setLoaded.
func (s *service) setLoaded(ctx context.Context, repository, name string, loaded, overrides bool) error {
	if err := checkRepository(repository); err != nil {
		return err
	}
	if err := s.env.AllowControl(ctx); err != nil {
		return err
	}
	if overrides {
		return fmt.Errorf("%w: parameters of load: a model is a function of the owner, which has no configuration or files", ErrNotServed)
	}
	if err := s.models.setLoaded(ctx, name, loaded); err != nil {
		if loaded {
			return fmt.Errorf("failed to load '%s': %w", clip(name), err)
		}
		return err
	}
	change := gateway.ChangeUnload
	if loaded {
		change = gateway.ChangeLoad
	}
	s.env.Audited(ctx, change, "function", name)
	return nil
}
