package task

// EachResult calls visit for every kept result, in no order. The results are borrowed. The manager is locked meanwhile:
// visit must be quick and not call the manager.
func (m *Manager[V]) EachResult(visit func(id string, result V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, t := range m.tasks {
		if t.held {
			visit(id, t.result)
		}
	}
}
