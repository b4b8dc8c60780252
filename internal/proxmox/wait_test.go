// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// taskHost runs one task and records when it was polled.
type taskHost struct {
	proxmox.TaskClient
	kind  string // of the task
	began time.Time
	takes time.Duration
	// latency is the response time of a poll.
	latency time.Duration
	exit    string
	polls   []time.Duration
	// fail returns the error of the nth poll, or nil.
	fail func(n int) error
	// unflushed makes the first poll after the end return "unexpected status".
	unflushed bool
}

func (h *taskHost) Task(ctx context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	elapsed := time.Since(h.began)
	defer time.Sleep(h.latency)
	h.polls = append(h.polls, elapsed)
	if ctx.Err() != nil {
		return proxmox.TaskStatus{}, ctx.Err()
	}
	if h.fail != nil {
		if err := h.fail(len(h.polls)); err != nil {
			return proxmox.TaskStatus{}, err
		}
	}
	status := proxmox.TaskStatus{UPID: task, Running: elapsed < h.takes}
	if !status.Running {
		status.Exit = h.exit
		if h.unflushed {
			status.Exit, h.unflushed = "unexpected status", false
		}
	}
	return status, nil
}

func newTaskHost(takes time.Duration) *taskHost {
	return &taskHost{kind: "qmclone", takes: takes, exit: "OK"}
}

func (h *taskHost) wait(ctx context.Context) (proxmox.TaskStatus, error) {
	h.began, h.polls = time.Now(), nil
	task := proxmox.UPID(strings.Replace(testUPID, "qmclone", h.kind, 1))
	return proxmox.WaitTask(ctx, h, task, proxmox.WaitOptions{})
}

// notice waits for a task of a duration. It returns the number of polls, and how long after its end the task was noticed.
func (h *taskHost) notice(t *testing.T, takes time.Duration) (polls int, late time.Duration) {
	t.Helper()
	h.takes = takes
	NewWithT(t).Expect(h.wait(t.Context())).Error().NotTo(HaveOccurred())
	return len(h.polls), h.polls[len(h.polls)-1] - takes
}

// The end of a task is noticed a fifth too late at most, whatever other tasks took before.
func TestWaitTask(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		const firstPoll = 250 * time.Millisecond
		host, random := newTaskHost(0), rand.New(rand.NewPCG(1, 1))
		for range 500 {
			takes := time.Duration(float64(100*time.Millisecond) * math.Pow(2000, random.Float64()))
			polls, late := host.notice(t, takes)
			g.Expect(host.polls[0]).To(Equal(firstPoll))
			g.Expect(late).To(BeNumerically("<=", max(firstPoll-takes, takes/5, 50*time.Millisecond)), takes.String())
			steps := math.Log(float64(takes)/float64(firstPoll)) / math.Log(1.2)
			g.Expect(polls).To(BeNumerically("<=", 2+max(steps, 0)+takes.Seconds()/5), takes.String())
		}
	})
}

func TestWaitTaskStop(t *testing.T) {
	t.Parallel()
	for kind, durations := range map[string][]time.Duration{
		"qmstop":     {1650, 1640, 1660, 1650, 610, 620, 1640, 600, 1650, 620},
		"qmshutdown": {3650, 4640, 2660, 9650, 3610, 3620, 4640, 1600},
	} {
		runSimulated(t, kind, func(t *testing.T, g *WithT) {
			host := newTaskHost(0)
			host.kind = kind
			for _, takes := range durations {
				polls, late := host.notice(t, takes*time.Millisecond)
				g.Expect(polls).To(BeNumerically("<=", map[string]int{"qmstop": 2, "qmshutdown": int(takes / 1000)}[kind]))
				g.Expect(late).To(BeNumerically("<=", 100*time.Millisecond), "noticed late")
			}
		})
	}
}

// taskList is a Host whose tasks have ended. Its task list may not show that yet.
type taskList struct {
	proxmox.TaskClient
	stale        bool
	lists, reads atomic.Int64
}

func (l *taskList) Task(_ context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	l.reads.Add(1)
	return proxmox.TaskStatus{UPID: task, Exit: "OK"}, nil
}

func (l *taskList) RecentTasks(context.Context, string, string, time.Time) ([]proxmox.TaskStatus, error) {
	l.lists.Add(1)
	exit := map[bool]string{false: "OK"}[l.stale]
	return []proxmox.TaskStatus{{UPID: testUPID, Running: l.stale, Exit: exit}, {UPID: uploadUPID, Running: l.stale, Exit: exit}}, nil
}

// uploadUPID is a task beside that of testUPID.
var uploadUPID = proxmox.UPID(strings.Replace(testUPID, "qmclone", "imgcopy", 1))

func TestWaitTaskShared(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]bool{"listed_as_ended": false, "stale_list": true} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			host, polls := &taskList{stale: stale}, proxmox.NewTaskPolls()
			var waits errgroup.Group
			for _, task := range []proxmox.UPID{testUPID, uploadUPID} {
				waits.Go(func() error {
					_, err := proxmox.WaitTask(t.Context(), host, task, proxmox.WaitOptions{Polls: polls})
					return err
				})
			}
			g.Expect(waits.Wait()).To(Succeed())
			if stale {
				g.Expect(host.reads.Load()).To(Equal(int64(2)), "each task is read after three lists")
			} else {
				g.Expect(host.lists.Load()).To(Equal(int64(1)), "one list ends both waits")
				g.Expect(host.reads.Load()).To(BeZero())
			}
		})
	}
}

func TestWaitTaskErrors(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		g.Expect(proxmox.WaitTask(t.Context(), &taskHost{}, "", proxmox.WaitOptions{})).To(HaveField("Succeeded()", true), "no task")

		host := newTaskHost(5 * time.Second)
		host.fail = func(int) error { return proxmox.ErrNotFound }
		g.Expect(host.wait(t.Context())).Error().To(MatchError(proxmox.ErrNotFound))
		g.Expect(host.polls).To(HaveLen(1))

		transient := []error{proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrUnknownOutcome, nil}
		host.fail = func(n int) error { return transient[min(n, len(transient))-1] }
		g.Expect(host.wait(t.Context())).To(HaveField("Succeeded()", true))

		host.fail = func(int) error { return fmt.Errorf("reading the task: %w", proxmox.ErrHostUnreachable) }
		g.Expect(host.wait(t.Context())).Error().To(MatchError(proxmox.ErrHostUnreachable))
		g.Expect(time.Since(host.began)).To(BeNumerically("~", 35*time.Second, 5*time.Second))

		ctx, cancel := context.WithCancel(t.Context())
		host.fail = func(n int) error {
			if n == 3 {
				cancel()
			}
			return proxmox.ErrHostUnreachable
		}
		g.Expect(host.wait(ctx)).Error().To(And(MatchError(context.Canceled), MatchError(proxmox.ErrHostUnreachable)))
		g.Expect(host.polls).To(HaveLen(3))
	})
}

// Proxmox returns "unexpected status" between the worker's end and its last log line.
func TestWaitTaskUnexpectedStatus(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newTaskHost(time.Second)
		host.unflushed = true
		g.Expect(host.wait(t.Context())).To(HaveField("Exit", "OK"))

		host.exit = "unexpected status"
		g.Expect(host.wait(t.Context())).To(HaveField("Err()", MatchError(proxmox.ErrUnknownOutcome)))
	})
}
