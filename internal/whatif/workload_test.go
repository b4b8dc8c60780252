// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

func TestNewPods(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"app": "web"}
	pod := func(namespace, name string, phase corev1.PodPhase) client.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Status: corev1.PodStatus{Phase: phase}}
	}
	existing := []client.Object{pod("shop", "a", corev1.PodRunning), pod("shop", "b", corev1.PodFailed), pod("shop", "web-1", corev1.PodRunning), pod("other", "c", corev1.PodRunning)}
	deployment := func(replicas *int32) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: appsv1.DeploymentSpec{
			Replicas: replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
		}}
	}
	job := func(suspend bool) client.Object {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "report"}, Spec: batchv1.JobSpec{Suspend: &suspend}}
	}
	for name, test := range map[string]struct {
		object client.Object
		want   []string
	}{
		"more_replicas":    {deployment(new(int32(4))), []string{"shop/web-2", "shop/web-3"}},
		"same_replicas":    {deployment(new(int32(2))), nil},
		"existing_pod":     {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}}, nil},
		"default_replicas": {deployment(nil), nil},
		"pod":              {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "debug"}, Spec: corev1.PodSpec{NodeName: "node"}}, []string{"shop/debug"}},
		"job":              {job(false), []string{"shop/report-1"}},
		"suspended_job":    {job(true), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			workload, ok := workloadOf(test.object)
			g.Expect(ok).To(BeTrue())
			pods, err := workload.newPods(existing)
			g.Expect(err).NotTo(HaveOccurred())
			var names []string
			for _, pod := range pods {
				names = append(names, client.ObjectKeyFromObject(pod).String())
				g.Expect(podutils.IsProvisionable(pod)).To(BeTrue(), "core plans a node for it")
			}
			g.Expect(names).To(Equal(test.want))
		})
	}
}
