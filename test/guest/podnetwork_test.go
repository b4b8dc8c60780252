// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"net"
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
			}},
		}}
		must(t, e.kube.Create(t.Context(), pod))
		e.within(t, bootTimeout, fmt.Sprintf("a response from %s on %s to %s", to.Status.PodIP, to.Spec.NodeName, from.Spec.NodeName), func(ctx context.Context) error {
			if err := e.kube.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodSucceeded {
				return fmt.Errorf("%s", podStates([]corev1.Pod{*pod}))
			}
			return nil
		})
		must(t, e.kube.Delete(t.Context(), pod))
	}
}
