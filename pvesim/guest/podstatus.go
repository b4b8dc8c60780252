// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A pod with this label never becomes ready. Tests written for kwok use this label
// to select kwok's stages.
const (
	stageLabel     = "kwok.x-k8s.io/stage"
	stageUnhealthy = "unhealthy"
)

// podStatus returns the status that a kubelet reports for a running pod, and whether it
// differs from the current status.
func (l *podLoop) podStatus(pod *corev1.Pod) (corev1.PodStatus, bool) {
	if pod.Spec.RestartPolicy == corev1.RestartPolicyNever && l.ranBefore(pod) {
		// Its containers were terminated with the machine and are not restarted.
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeRebooted", Message: "The node was rebooted."}, true
	}
	healthy := pod.Labels[stageLabel] != stageUnhealthy
	if l.runsHere(pod) && isPodReady(pod) == healthy {
		return corev1.PodStatus{}, false
	}
	now := metav1.Now()
	ready := corev1.ConditionTrue
	if !healthy {
		ready = corev1.ConditionFalse
	}
	status := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		StartTime: pod.Status.StartTime,
		HostIP:    l.nodeAddresses()[0].Address,
		PodIP:     pod.Status.PodIP,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: now},
		},
		InitContainerStatuses: l.containerStatuses(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, healthy, true),
		ContainerStatuses:     l.containerStatuses(pod.Spec.Containers, pod.Status.ContainerStatuses, healthy, false),
	}
	if status.StartTime == nil {
		status.StartTime = &now
	}
	switch {
	case pod.Spec.HostNetwork:
		status.PodIP = status.HostIP
	case status.PodIP == "":
		status.PodIP = l.runtime.podIP().String()
	}
	status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	return status, true
}

// containerStatuses reports containers as running since now; init containers,
// apart from sidecars, as completed.
func (l *podLoop) containerStatuses(containers []corev1.Container, before []corev1.ContainerStatus, ready, init bool) []corev1.ContainerStatus {
	now := metav1.Now()
	out := make([]corev1.ContainerStatus, 0, len(containers))
	for i := range containers {
		c := &containers[i]
		status := corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: l.containerID(c.Name),
			Ready: ready, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}
		if init && ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways {
			status.Ready, status.Started = true, new(false)
			status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: status.ContainerID,
			}}
		}
		for j := range before {
			if before[j].Name != c.Name {
				continue
			}
			status.RestartCount = before[j].RestartCount
			if before[j].ContainerID == status.ContainerID {
				status.State = before[j].State
			} else if before[j].ContainerID != "" && !init {
				status.RestartCount++
			}
		}
		out = append(out, status)
	}
	return out
}

// containerID returns an ID that contains the boot ID, because no container survives a
// reboot.
func (l *podLoop) containerID(name string) string {
	return fmt.Sprintf("containerd://%s-%s", l.bootID, name)
}

// runsHere reports whether the pod's containers were started in this boot.
func (l *podLoop) runsHere(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.ContainerID != l.containerID(s.Name) {
			return false
		}
	}
	return true
}

// ranBefore reports whether the pod's containers were started in an earlier boot.
func (l *podLoop) ranBefore(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && !l.runsHere(pod)
}

func isPodReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// shutdownStatus returns the status of a pod that the kubelet terminated for a shutdown.
func shutdownStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Terminated",
		Message: "Pod was terminated in response to imminent node shutdown.",
		Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: now},
		},
	}
	for i := range pod.Status.ContainerStatuses {
		s := pod.Status.ContainerStatuses[i]
		s.Ready, s.Started = false, new(false)
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 143, Reason: "Error", FinishedAt: now, ContainerID: s.ContainerID,
		}}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	return status
}
