// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"io"
	"net/http"
)

// SetHang sets whether the server accepts requests without ever responding. The requests have no effect, and their
// connections close when it no longer hangs.
func (s *Server) SetHang(hang bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case hang && s.hang == nil:
		s.hang = make(chan struct{})
	case !hang && s.hang != nil:
		close(s.hang)
		s.hang = nil
	}
}

// isUnavailable reports whether a request gets no response because the host is down or the server hangs. If it hangs,
// the function waits until it no longer does, or until the client disconnects.
func (s *Server) isUnavailable(r *http.Request) bool {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang != nil {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the context does not end when the client disconnects
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		return true
	}
	s.Kernel.Mu.Lock()
	defer s.Kernel.Mu.Unlock()
	h := s.Kernel.Host(s.Host)
	removed := h == nil && s.Host != ""
	return removed || (h != nil && !h.Online)
}
