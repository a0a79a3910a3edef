package inference

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bulk"
	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
)

// Numbers of the fields that contain elements, and of the response in a stream response.
const (
	modelNameField  = 1
	idField         = 3
	rawInputField   = 7
	rawOutputField  = 6
	streamedMessage = 2
)

// ServiceName is the name of the gRPC service.
const ServiceName = "inference.GRPCInferenceService"

// grpcService implements the generated interface.
type grpcService struct {
	pb.UnimplementedGRPCInferenceServiceServer
	*service
}

// registerGRPC adds the service to a server.
func registerGRPC(r grpc.ServiceRegistrar, s *service) {
	desc := pb.GRPCInferenceService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "ModelInfer" {
			desc.Methods[i].Handler = handleInfer // the generated handler would copy
		}
	}
	r.RegisterService(&desc, grpcService{service: s})
}

// requestMessage returns a message for receiving a request with its elements as parts. The right to call its model is checked
// before it is decoded.
func (s *service) requestMessage(ctx context.Context) *bulk.Parts {
	name := &bulk.Name{Field: modelNameField, Keep: idField, Check: func(name string) error { return s.models.allow(ctx, name) }}
	return &bulk.Parts{Head: new(pb.ModelInferRequest), Field: rawInputField, Name: name}
}

func handleInfer(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // grpc's order
	in := srv.(grpcService).requestMessage(ctx)
	if err := dec(in); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, in any) (any, error) {
		return srv.(grpcService).modelInfer(ctx, in.(*bulk.Parts))
	}
	if interceptor == nil {
		return handler(ctx, in)
	}
	return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: pb.GRPCInferenceService_ModelInfer_FullMethodName}, handler)
}

// modelInfer answers a request that is one message.
func (s grpcService) modelInfer(ctx context.Context, in *bulk.Parts) (any, error) {
	defer in.Free()
	if err := in.Name.Err(); err != nil {
		return nil, admission.Status(err)
	}
	r, err := requestOf(in.Head.(*pb.ModelInferRequest), in.List())
	if err == nil {
		err = s.checkClient(ctx, r)
	}
	if err != nil {
		return nil, admission.Status(err)
	}
	out, err := s.infer(ctx, r)
	if err != nil {
		return nil, admission.Status(err)
	}
	defer out.outputs.close()
	message, err := out.message(s.service)
	return message, admission.Status(err)
}

// ServerLive implements the service.
func (s grpcService) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

// ServerReady implements the service.
func (s grpcService) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: s.ready() == nil}, nil
}

// ModelReady implements the service.
func (s grpcService) ModelReady(ctx context.Context, r *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	ready, err := s.modelReady(ctx, r.GetName(), r.GetVersion())
	return &pb.ModelReadyResponse{Ready: ready}, admission.Status(err)
}

// ServerMetadata implements the service.
func (s grpcService) ServerMetadata(context.Context, *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	return &pb.ServerMetadataResponse{Name: s.name, Version: s.env.Version, Extensions: s.extensions()}, nil
}

// ModelMetadata implements the service.
func (s grpcService) ModelMetadata(ctx context.Context, r *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	m, versions, _, err := s.describe(ctx, r.GetName(), r.GetVersion())
	if err != nil {
		return nil, admission.Status(err)
	}
	return &pb.ModelMetadataResponse{
		Name: m.name, Versions: versions, Platform: platform, Inputs: tensorMetadata(m.inputs), Outputs: tensorMetadata(m.outputs),
	}, nil
}

func tensorMetadata(list []port) []*pb.ModelMetadataResponse_TensorMetadata {
	all := make([]*pb.ModelMetadataResponse_TensorMetadata, len(list))
	for i, p := range list {
		all[i] = &pb.ModelMetadataResponse_TensorMetadata{Name: p.name, Datatype: p.datatype, Shape: p.shape}
	}
	return all
}

// ModelConfig implements the service.
func (s grpcService) ModelConfig(ctx context.Context, r *pb.ModelConfigRequest) (*pb.ModelConfigResponse, error) {
	config, err := s.config(ctx, r.GetName(), r.GetVersion())
	if err != nil {
		return nil, admission.Status(err)
	}
	return &pb.ModelConfigResponse{Config: config}, nil
}

// ModelStatistics implements the service.
func (s grpcService) ModelStatistics(ctx context.Context, r *pb.ModelStatisticsRequest) (*pb.ModelStatisticsResponse, error) {
	list, err := s.statistics(ctx, r.GetName(), r.GetVersion())
	return &pb.ModelStatisticsResponse{ModelStats: list}, admission.Status(err)
}

// RepositoryIndex implements the service.
func (s grpcService) RepositoryIndex(ctx context.Context, r *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	list, err := s.index(ctx, r.GetRepositoryName(), r.GetReady())
	if err != nil {
		return nil, admission.Status(err)
	}
	out := &pb.RepositoryIndexResponse{}
	for _, one := range list {
		out.Models = append(out.Models, &pb.RepositoryIndexResponse_ModelIndex{Name: one.Name, Version: one.Version, State: one.State, Reason: one.Reason})
	}
	return out, nil
}

// RepositoryModelLoad implements the service.
func (s grpcService) RepositoryModelLoad(ctx context.Context, r *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	err := s.setLoaded(ctx, r.GetRepositoryName(), r.GetModelName(), true, len(r.GetParameters()) > 0)
	return &pb.RepositoryModelLoadResponse{}, admission.Status(err)
}

// RepositoryModelUnload implements the service.
func (s grpcService) RepositoryModelUnload(ctx context.Context, r *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	return &pb.RepositoryModelUnloadResponse{}, admission.Status(s.setLoaded(ctx, r.GetRepositoryName(), r.GetModelName(), false, false))
}

// TraceSetting implements the service.
func (s grpcService) TraceSetting(ctx context.Context, r *pb.TraceSettingRequest) (*pb.TraceSettingResponse, error) {
	if name := r.GetModelName(); name != "" {
		if _, err := s.models.lookup(ctx, name); err != nil {
			return nil, admission.Status(err)
		}
	}
	for name := range r.GetSettings() {
		return nil, admission.Status(errSetting(name, traceRemedy))
	}
	out := &pb.TraceSettingResponse{Settings: map[string]*pb.TraceSettingResponse_SettingValue{}}
	for name, values := range traceValues() {
		out.Settings[name] = &pb.TraceSettingResponse_SettingValue{Value: values}
	}
	return out, nil
}

// LogSettings implements the service.
func (s grpcService) LogSettings(_ context.Context, r *pb.LogSettingsRequest) (*pb.LogSettingsResponse, error) {
	for name := range r.GetSettings() {
		return nil, admission.Status(errSetting(name, logRemedy))
	}
	out := &pb.LogSettingsResponse{Settings: map[string]*pb.LogSettingsResponse_SettingValue{}}
	for name, v := range s.logValues() {
		one := &pb.LogSettingsResponse_SettingValue{}
		switch v := v.(type) {
		case bool:
			one.ParameterChoice = &pb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: v}
		case uint32:
			one.ParameterChoice = &pb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: v}
		case string:
			one.ParameterChoice = &pb.LogSettingsResponse_SettingValue_StringParam{StringParam: v}
		}
		out.Settings[name] = one
	}
	return out, nil
}

// SystemSharedMemoryStatus implements the service.
func (s grpcService) SystemSharedMemoryStatus(ctx context.Context, r *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	list, err := s.regionStatus(ctx, r.GetName(), false)
	if err != nil {
		return nil, admission.Status(err)
	}
	out := &pb.SystemSharedMemoryStatusResponse{Regions: map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus{}}
	for _, one := range list {
		out.Regions[one.name] = &pb.SystemSharedMemoryStatusResponse_RegionStatus{
			Name: one.name, Key: one.key, Offset: one.offset, ByteSize: uint64(one.bytes),
		}
	}
	return out, nil
}

// SystemSharedMemoryRegister implements the service.
func (s grpcService) SystemSharedMemoryRegister(ctx context.Context, r *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	err := s.registerSystem(ctx, r.GetName(), r.GetKey(), r.GetOffset(), r.GetByteSize())
	return &pb.SystemSharedMemoryRegisterResponse{}, admission.Status(err)
}

// SystemSharedMemoryUnregister implements the service.
func (s grpcService) SystemSharedMemoryUnregister(ctx context.Context, r *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	return &pb.SystemSharedMemoryUnregisterResponse{}, admission.Status(s.unregister(ctx, r.GetName(), false))
}

// CudaSharedMemoryStatus implements the service.
func (s grpcService) CudaSharedMemoryStatus(ctx context.Context, r *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	list, err := s.regionStatus(ctx, r.GetName(), true)
	if err != nil {
		return nil, admission.Status(err)
	}
	out := &pb.CudaSharedMemoryStatusResponse{Regions: map[string]*pb.CudaSharedMemoryStatusResponse_RegionStatus{}}
	for _, one := range list {
		out.Regions[one.name] = &pb.CudaSharedMemoryStatusResponse_RegionStatus{
			Name: one.name, DeviceId: uint64(one.device), ByteSize: uint64(one.bytes),
		}
	}
	return out, nil
}

// CudaSharedMemoryRegister implements the service.
func (s grpcService) CudaSharedMemoryRegister(ctx context.Context, r *pb.CudaSharedMemoryRegisterRequest) (*pb.CudaSharedMemoryRegisterResponse, error) {
	err := s.registerCUDA(ctx, r.GetName(), r.GetRawHandle(), r.GetDeviceId(), r.GetByteSize())
	return &pb.CudaSharedMemoryRegisterResponse{}, admission.Status(err)
}

// CudaSharedMemoryUnregister implements the service.
func (s grpcService) CudaSharedMemoryUnregister(ctx context.Context, r *pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return &pb.CudaSharedMemoryUnregisterResponse{}, admission.Status(s.unregister(ctx, r.GetName(), true))
}
