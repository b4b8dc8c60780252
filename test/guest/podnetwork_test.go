// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// podsReachEachOther starts a client next to each server, which sends a request to the server on the other Node.
func (e *env) podsReachEachOther(t *testing.T, c testCase) {
	t.Helper()
	servers, err := harness.Pods(t.Context(), e.kube, c.name)
	must(t, err)
	for i := range servers {
		from, to := &servers[i], &servers[(i+1)%len(servers)]
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: from.Namespace, Name: fmt.Sprintf("%s-client-%d", c.name, i)}, Spec: corev1.PodSpec{
			NodeName: from.Spec.NodeName, RestartPolicy: corev1.RestartPolicyNever, Tolerations: from.Spec.Tolerations,
			Containers: []corev1.Container{{
				Name: "client", Image: testImage, ImagePullPolicy: corev1.PullNever, Args: []string{"get", "http://" + net.JoinHostPort(to.Status.PodIP, "8080"), "5m"},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		}}
		must(t, e.kube.Create(t.Context(), pod))
		request := fmt.Sprintf("a request from a pod on %s to %s on %s", from.Spec.NodeName, to.Status.PodIP, to.Spec.NodeName)
		e.within(t, bootTimeout, request, func(ctx context.Context) error {
			if err := e.kube.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				return errors.New(podStates([]corev1.Pod{*pod}))
			}
			return nil
		})
		if pod.Status.Phase == corev1.PodFailed {
			t.Fatalf("%s failed: %s", request, podStates([]corev1.Pod{*pod}))
		}
		t.Logf("%s succeeded", request)
		must(t, e.kube.Delete(t.Context(), pod))
	}
}

// checkPodNetwork checks that containerd found the network plugin, which is only in /opt/cni/bin.
func (n *node) checkPodNetwork(t testing.TB) {
	t.Helper()
	pods, err := harness.Pods(t.Context(), n.kube, n.c.name)
	must(t, err)
	for i := range pods {
		if pods[i].Spec.NodeName != n.node.Name || harness.PodReady(&pods[i]) {
			continue
		}
		failure, err := n.networkFailure(t.Context(), &pods[i])
		must(t, err)
		t.Errorf("pod %s has no network: %s", pods[i].Name, failure)
	}
}

// networkFailure returns why a pod gets no network. It is empty if the kubelet has reported no missing plugin.
func (e *env) networkFailure(ctx context.Context, pod *corev1.Pod) (string, error) {
	events := &corev1.EventList{}
	if err := e.kube.List(ctx, events, client.InNamespace(pod.Namespace), client.MatchingFields{"involvedObject.uid": string(pod.UID)}); err != nil {
		return "", err
	}
	for _, event := range events.Items {
		if strings.Contains(event.Message, "failed to find plugin") {
			return event.Message, nil
		}
	}
	return "", nil
}

// createHostPod creates a pod in the network of the Node, which can start without a pod network.
func (n *node) createHostPod(t *testing.T) {
	t.Helper()
	spec := n.c.deployment().Spec.Template.Spec
	spec.HostNetwork, spec.NodeName, spec.Affinity = true, n.node.Name, nil
	spec.Containers[0].Resources = corev1.ResourceRequirements{}
	must(t, n.kube.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: n.node.Name}, Spec: spec}))
}
