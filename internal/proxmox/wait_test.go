// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
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

func (h *taskHost) wait(ctx context.Context, durations *proxmox.Durations) (proxmox.TaskStatus, error) {
	h.began, h.polls = time.Now(), nil
	task := proxmox.UPID(strings.Replace(testUPID, "qmclone", h.kind, 1))
	return proxmox.WaitTask(ctx, h, task, proxmox.WaitOptions{Durations: durations, Key: "pve1/local-lvm"})
}

// repeat waits for several tasks of the same duration. It returns the number of polls and how long after their ends the
// tasks were noticed, in total.
func (h *taskHost) repeat(t *testing.T, durations *proxmox.Durations, tasks int) (polls int, late time.Duration) {
	t.Helper()
	for range tasks {
		NewWithT(t).Expect(h.wait(t.Context(), durations)).Error().NotTo(HaveOccurred())
		polls += len(h.polls)
		late += h.polls[len(h.polls)-1] - h.takes
	}
	return polls, late
}

func TestWaitTask(t *testing.T) {
	t.Parallel()
	const rounds = 40
	for _, takes := range []time.Duration{100 * time.Millisecond, 700 * time.Millisecond, 4 * time.Second, time.Minute} {
		runSimulated(t, takes.String(), func(t *testing.T, g *WithT) {
			host, durations := newTaskHost(takes), proxmox.NewDurations()
			host.repeat(t, durations, 60)
			polls, late := host.repeat(t, durations, rounds)
			blind := int(takes / (10 * time.Second)) // polls to notice an early failure
			g.Expect(polls).To(BeNumerically("<=", rounds*(1+blind)+rounds/4), "polls")
			g.Expect(late/rounds).To(BeNumerically("<=", max(takes/20, 20*time.Millisecond)), "noticed late")
		})
	}
	// If a response takes about as long as the task itself, its latency must not count as
	// the task's duration: each poll would be later than the one before.
	runSimulated(t, "slow_responses", func(t *testing.T, g *WithT) {
		host, durations := newTaskHost(150*time.Millisecond), proxmox.NewDurations()
		host.latency = 100 * time.Millisecond
		host.repeat(t, durations, rounds)
		_, late := host.repeat(t, durations, rounds)
		// A task that is still running at the first poll is noticed one response later.
		g.Expect(late/rounds).To(BeNumerically("<=", host.latency/2), "noticed late")
	})
	runSimulated(t, "varying_durations", func(t *testing.T, g *WithT) {
		random := rand.New(rand.NewPCG(1, 1))
		host, durations := newTaskHost(0), proxmox.NewDurations()
		polls, late, total := 0, time.Duration(0), time.Duration(0)
		for range 10 * rounds {
			host.takes = time.Second + time.Duration(random.Int64N(int64(200*time.Millisecond)))
			polled, lateBy := host.repeat(t, durations, 1)
			polls, late, total = polls+polled, late+lateBy, total+host.takes
		}
		g.Expect(polls).To(BeNumerically("<=", 10*rounds*2), "polls")
		g.Expect(late).To(BeNumerically("<=", total/10), "noticed late")
	})
	// A task that waited for a lock must not delay the polls of the next ones.
	runSimulated(t, "outlier", func(t *testing.T, g *WithT) {
		host, durations := newTaskHost(time.Second), proxmox.NewDurations()
		host.repeat(t, durations, 20)
		host.takes = 9 * time.Second
		host.repeat(t, durations, 1)
		host.takes = time.Second
		_, first := host.repeat(t, durations, 1)
		g.Expect(first).To(BeNumerically("<", 4*time.Second))
		host.repeat(t, durations, 6)
		_, last := host.repeat(t, durations, 1)
		g.Expect(last).To(BeNumerically("<", 100*time.Millisecond))
	})
	// After tasks that were slow for a while, such as beside a backup, the polls are on time
	// again within a few tasks.
	runSimulated(t, "recovery", func(t *testing.T, g *WithT) {
		host, durations := newTaskHost(1300*time.Millisecond), proxmox.NewDurations()
		host.repeat(t, durations, 20)
		host.takes = 400 * time.Millisecond
		host.repeat(t, durations, 7)
		_, late := host.repeat(t, durations, 1)
		g.Expect(late).To(BeNumerically("<", 100*time.Millisecond), "noticed late")
	})
}

// Proxmox checks every second whether a VM has stopped, so a stop takes a little more than
// 0.6 s or 1.6 s, in no order. The time that a guest needs to shut down varies more.
func TestWaitTaskStop(t *testing.T) {
	t.Parallel()
	for kind, durations := range map[string][]time.Duration{
		"qmstop":     {1650, 1640, 1660, 1650, 610, 620, 1640, 600, 1650, 620},
		"qmshutdown": {3650, 4640, 2660, 9650, 3610, 3620, 4640, 1600},
	} {
		runSimulated(t, kind, func(t *testing.T, g *WithT) {
			host, learned := newTaskHost(0), proxmox.NewDurations()
			host.kind = kind
			for _, takes := range durations {
				host.takes = takes * time.Millisecond
				polls, late := host.repeat(t, learned, 1)
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
	var rows []proxmox.TaskStatus
	for _, task := range []proxmox.UPID{testUPID, uploadUPID} {
		row := proxmox.TaskStatus{UPID: task, Running: l.stale}
		if !l.stale {
			row.Exit = "OK"
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// uploadUPID is a task beside that of testUPID.
var uploadUPID = proxmox.UPID(strings.Replace(testUPID, "qmclone", "imgcopy", 1))

func TestWaitTaskShared(t *testing.T) {
	t.Parallel()
	for name, stale := range map[string]bool{"listed_as_ended": false, "stale_list": true} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			host, polls, durations := &taskList{stale: stale}, proxmox.NewTaskPolls(), proxmox.NewDurations()
			var waits errgroup.Group
			// Both waits must have begun before the first poll.
			for task, later := range map[proxmox.UPID]time.Duration{testUPID: 3 * time.Second, uploadUPID: 10 * time.Second} {
				waits.Go(func() error {
					_, err := proxmox.WaitTask(t.Context(), host, task, proxmox.WaitOptions{Durations: durations, Polls: polls, NotBefore: later})
					return err
				})
			}
			g.Expect(waits.Wait()).To(Succeed())
			if !stale {
				g.Expect(host.lists.Load()).To(Equal(int64(1)), "one list ends both waits")
				g.Expect(host.reads.Load()).To(BeZero())
			}
		})
	}
}

// Tasks of a burst take longer. They do not delay the polls of the tasks after it.
func TestWaitTaskAfterBurst(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	durations := proxmox.NewDurations()
	durations.Observe("qmclone", "k", proxmox.Observation{Took: 400 * time.Millisecond})
	for range 10 {
		durations.Observe("qmclone", "k", proxmox.Observation{Took: 3 * time.Second, UpperBound: true})
	}
	g.Expect(durations.Expected("qmclone", "k")).To(Equal(400 * time.Millisecond))
	g.Expect(durations.Learned("qmclone", "k")).To(Equal(3 * time.Second))
}

func TestWaitTaskKeys(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		durations := proxmox.NewDurations()
		newTaskHost(20*time.Second).repeat(t, durations, 20)
		g.Expect(durations.Expected("qmclone", "pve1/local-lvm")).To(BeNumerically("~", 20*time.Second, 5*time.Second))
		g.Expect(durations.Expected("qmclone", "pve2/local-lvm")).To(BeNumerically("<", time.Second))
		g.Expect(durations.Expected("qmstart", "pve1/local-lvm")).To(BeNumerically("<", 2*time.Second))
		g.Expect(durations.Expected("other", "pve1/local-lvm")).To(Equal(500 * time.Millisecond))
	})
}

func TestWaitTaskEmptyUPID(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(proxmox.WaitTask(t.Context(), &taskHost{}, "", proxmox.WaitOptions{})).To(HaveField("Succeeded()", true))
}

// A task that fails early is noticed although it was expected to take minutes.
func TestWaitTaskEarlyFailure(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		durations := proxmox.NewDurations()
		for range 30 {
			durations.Observe("qmclone", "pve1/local-lvm", proxmox.Observation{Took: 300 * time.Second})
		}
		host := newTaskHost(time.Second)
		host.exit = "clone failed: No space left on device"
		g.Expect(host.wait(t.Context(), durations)).To(HaveField("Err()", MatchError(proxmox.ErrStorageFull)))
		g.Expect(host.polls).To(HaveLen(1))
		g.Expect(host.polls[0]).To(BeNumerically("<=", 10*time.Second))
	})
}

func TestWaitTaskUnreachableHost(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newTaskHost(5 * time.Second)
		transient := []error{proxmox.ErrHostUnreachable, proxmox.ErrUnreachable, proxmox.ErrUnknownOutcome}
		host.fail = func(n int) error {
			if n <= len(transient) {
				return fmt.Errorf("reading the task: %w", transient[n-1])
			}
			return nil
		}
		g.Expect(host.wait(t.Context(), nil)).To(HaveField("Succeeded()", true))

		host.fail = func(int) error { return fmt.Errorf("reading the task: %w", proxmox.ErrHostUnreachable) }
		g.Expect(host.wait(t.Context(), nil)).Error().To(MatchError(proxmox.ErrHostUnreachable))
		g.Expect(time.Since(host.began)).To(BeNumerically("~", 35*time.Second, 5*time.Second))
	})
}

func TestWaitTaskNotFound(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newTaskHost(5 * time.Second)
		host.fail = func(int) error { return proxmox.ErrNotFound }
		g.Expect(host.wait(t.Context(), nil)).Error().To(MatchError(proxmox.ErrNotFound))
		g.Expect(host.polls).To(HaveLen(1))
	})
}

func TestWaitTaskCanceled(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newTaskHost(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		host.fail = func(n int) error {
			if n == 3 {
				cancel()
			}
			return proxmox.ErrHostUnreachable
		}
		g.Expect(host.wait(ctx, nil)).Error().To(And(MatchError(context.Canceled), MatchError(proxmox.ErrHostUnreachable)))
		g.Expect(host.polls).To(HaveLen(3))
	})
}

// Proxmox returns "unexpected status" between the worker's end and its last log line.
func TestWaitTaskUnexpectedStatus(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newTaskHost(time.Second)
		host.unflushed = true
		g.Expect(host.wait(t.Context(), nil)).To(HaveField("Exit", "OK"))

		host.exit = "unexpected status"
		g.Expect(host.wait(t.Context(), nil)).To(HaveField("Err()", MatchError(proxmox.ErrUnknownOutcome)))
	})
}
