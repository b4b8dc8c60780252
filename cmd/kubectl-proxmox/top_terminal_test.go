// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// screen collects the output of a program on a pseudo terminal.
type screen struct {
	master *os.File
	mu     sync.Mutex
	output bytes.Buffer
	rows   uint16
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(p)
}

// shows changes the size of the window, so the program draws everything again, and waits for a text.
func (s *screen) shows(w *testenv.Env, want string) {
	w.T.Helper()
	w.Eventually(func(g Gomega) {
		s.mu.Lock()
		before := s.output.Len()
		s.mu.Unlock()
		s.rows = 81 - s.rows
		g.Expect(pty.Setsize(s.master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
		g.Expect(syscall.Kill(os.Getpid(), syscall.SIGWINCH)).To(Succeed())
		g.Eventually(func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return visible(string(s.output.Bytes()[before:]))
		}).WithTimeout(10 * time.Second).Should(ContainSubstring(want))
	}).Should(Succeed())
}

func (s *screen) types(w *testenv.Env, keys string) {
	_, err := s.master.WriteString(keys)
	w.Expect(err).NotTo(HaveOccurred())
}

// TestTopTerminal runs the live view on a pseudo terminal. It is not parallel, because it sends signals to the test process.
func TestTopTerminal(t *testing.T) {
	w, claim, source := topWorld(t)
	master, slave, err := pty.Open()
	w.Expect(err).NotTo(HaveOccurred())
	defer func() { _, _ = master.Close(), slave.Close() }()
	s := &screen{master: master, rows: 40}
	w.Expect(pty.Setsize(master, &pty.Winsize{Rows: s.rows, Cols: 150})).To(Succeed())
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			if err != nil {
				return
			}
			_, _ = s.Write(buffer[:n])
		}
	}()
	done := make(chan error, 1)
	go func() {
		done <- runTop(t.Context(), source, topOptions{interval: time.Second, order: "name"}, slave, slave)
	}()

	s.shows(w, fmt.Sprintf("VM %d", w.Intent(claim).VMID))
	s.shows(w, "waits pve1: 1 CPUs free, 2 required")
	s.types(w, "s")
	s.shows(w, "sort: CPUs")
	s.types(w, "\r")
	s.shows(w, "host region-1/pve1")
	s.types(w, "\r")
	s.shows(w, "nodeclaim "+claim.Name)
	s.shows(w, w.Name+"/runs")
	s.types(w, "\x1b")
	s.shows(w, "host region-1/pve1")
	s.types(w, "q")
	w.Eventually(done).Should(Receive(BeNil()))
}
