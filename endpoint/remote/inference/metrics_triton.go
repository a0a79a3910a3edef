package inference

import "github.com/prometheus/client_golang/prometheus"

// tritonMetric is a metric with the name, labels and unit that Triton documents, so that its dashboards and autoscalers
// work. The label version is always the served version of the function.
type tritonMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(m *model, calls uint64) float64
}

func newTritonMetric(name, help string, kind prometheus.ValueType, value func(m *model, calls uint64) float64) tritonMetric {
	return tritonMetric{prometheus.NewDesc("nv_inference_"+name, help, []string{"model", "version"}, nil), kind, value}
}

// microseconds returns the total of a duration.
func microseconds(of func(*recorder) *duration) func(*model, uint64) float64 {
	return func(m *model, _ uint64) float64 { return float64(of(m.stats).ns.Load() / 1e3) }
}

var tritonMetrics = []tritonMetric{
	newTritonMetric("request_success", "Number of successful inference requests, all batch sizes.", prometheus.CounterValue,
		func(m *model, _ uint64) float64 { return float64(m.stats.success.count.Load()) }),
	newTritonMetric("request_failure", "Number of failed inference requests, all batch sizes.", prometheus.CounterValue,
		func(m *model, _ uint64) float64 { return float64(m.stats.fail.count.Load()) }),
	newTritonMetric("count", "Number of inferences performed; a batch of n rows is n.", prometheus.CounterValue,
		func(m *model, _ uint64) float64 { return float64(m.stats.inferences.Load()) }),
	newTritonMetric("exec_count", "Number of model executions performed.", prometheus.CounterValue,
		func(_ *model, calls uint64) float64 { return float64(calls) }),
	newTritonMetric("pending_request_count", "Number of requests that wait for execution.", prometheus.GaugeValue,
		func(m *model, _ uint64) float64 {
			if m.batcher == nil {
				return 0
			}
			return float64(m.batcher.waiting())
		}),
	newTritonMetric("request_duration_us", "Cumulative duration of successful requests in microseconds.", prometheus.CounterValue,
		microseconds(func(r *recorder) *duration { return &r.success })),
	newTritonMetric("queue_duration_us", "Cumulative time in the queue in microseconds.", prometheus.CounterValue,
		microseconds(func(r *recorder) *duration { return &r.queue })),
	newTritonMetric("compute_input_duration_us", "Cumulative time to prepare inputs in microseconds.", prometheus.CounterValue,
		microseconds(func(r *recorder) *duration { return &r.input })),
	newTritonMetric("compute_infer_duration_us", "Cumulative time in the function in microseconds.", prometheus.CounterValue,
		microseconds(func(r *recorder) *duration { return &r.infer })),
	newTritonMetric("compute_output_duration_us", "Cumulative time to extract outputs in microseconds.", prometheus.CounterValue,
		microseconds(func(r *recorder) *duration { return &r.output })),
}

// tritonVersion is the label of functions, which have one version.
const tritonVersion = "1"

// collectTriton exports the figures of a model.
func collectTriton(ch chan<- prometheus.Metric, m *model, calls uint64) {
	for _, metric := range tritonMetrics {
		ch <- prometheus.MustNewConstMetric(metric.desc, metric.kind, metric.value(m, calls), m.name, tritonVersion)
	}
}
