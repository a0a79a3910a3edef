package task

// EachResult shows visit every result that is kept, in no order. The results are borrowed, and the manager is locked
// meanwhile: visit looks, is quick, and asks the manager for nothing.
func (m *Manager[V]) EachResult(visit func(id string, result V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, t := range m.tasks {
		if t.held {
			visit(id, t.result)
		}
	}
}
