// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTerminationEnd(t *testing.T) {
	t.Parallel()
	hook := func(h corev1.LifecycleHandler) corev1.Container {
		return corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &h}}
	}
	exec := func(command ...string) corev1.LifecycleHandler {
		return corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
	}
	sleeping := hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}})
	sleeping.Command = []string{"/bin/sh", "-c", "sleep 1000"}
	for name, c := range map[string]struct {
		containers []corev1.Container
		grace      int64
		limit      time.Duration
		want       time.Duration
	}{
		"ends_on_SIGTERM":           {[]corev1.Container{{Image: "pause"}}, 30, 0, 0},
		"ignores_SIGTERM":           {[]corev1.Container{{Command: []string{"sleep"}, Args: []string{"infinity"}}}, 30, 0, 30 * time.Second},
		"sleep_hook":                {[]corev1.Container{hook(corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}})}, 30, 0, 20 * time.Second},
		"sleep_of_a_shell":          {[]corev1.Container{hook(exec("/bin/sh", "-c", "sleep 20"))}, 30, 0, 20 * time.Second},
		"sleep_with_a_unit":         {[]corev1.Container{hook(exec("sleep", "1m"))}, 90, 0, time.Minute},
		"other_command":             {[]corev1.Container{hook(exec("nginx", "-s", "quit"))}, 30, 0, 0},
		"HTTP_hook":                 {[]corev1.Container{hook(corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}})}, 30, 0, 0},
		"hook_longer_than_grace":    {[]corev1.Container{hook(exec("sleep", "300"))}, 30, 0, 30 * time.Second},
		"hook_then_ignores_SIGTERM": {[]corev1.Container{sleeping}, 30, 0, 30 * time.Second},
		"hook_uses_up_grace":        {[]corev1.Container{sleeping}, 20, 0, 22 * time.Second},
		"slowest_container":         {[]corev1.Container{{Image: "pause"}, hook(exec("sleep", "5")), {Image: "pause"}}, 30, 0, 5 * time.Second},
		"compressed":                {[]corev1.Container{hook(exec("sleep", "20"))}, 30, time.Second, time.Second},
	} {
		deleted := time.Date(2026, 11, 16, 2, 0, 0, 0, time.UTC)
		ended := corev1.Container{Command: []string{"sleep", "1000"}}
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: c.containers, InitContainers: []corev1.Container{ended}}}
		pod.DeletionGracePeriodSeconds = new(c.grace)
		pod.DeletionTimestamp = &metav1.Time{Time: deleted.Add(time.Duration(c.grace) * time.Second)}
		NewWithT(t).Expect(terminationEnd(pod, c.limit).Sub(deleted)).To(Equal(c.want), "%s: the containers end after", name)
	}
}

// A second deletion with a shorter grace period ends a pod earlier, one with a longer does not
// extend it.
func TestPodStateEnd(t *testing.T) {
	t.Parallel()
	state := &podState{}
	now := time.Date(2026, 11, 16, 2, 0, 0, 0, time.UTC)
	for _, c := range []struct{ grace, want int64 }{{30, 30}, {10, 10}, {60, 10}} {
		state.pod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"sleep", "1000"}}}}}
		state.pod.DeletionGracePeriodSeconds = new(c.grace)
		state.pod.DeletionTimestamp = &metav1.Time{Time: now.Add(time.Duration(c.grace) * time.Second)}
		NewWithT(t).Expect(state.end(0).Sub(now)).To(Equal(time.Duration(c.want)*time.Second), "with a grace period of %d s the pod ends after", c.grace)
	}
}
