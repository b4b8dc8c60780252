// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coredisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withARM64 makes the second host arm64, which releases before 9.2 do not report.
func withARM64() testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) { s.Version, s.Hosts[1].Arch = "9.2", "aarch64" })
}

// daemonSet creates a DaemonSet for an architecture with a host port.
func (k *karpenter) daemonSet(arch string, port int32) {
	k.T.Helper()
	labels := map[string]string{"app": "daemon-" + arch}
	k.Create(&appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "daemon-" + arch},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelArchStable: arch},
					Containers:   []corev1.Container{{Name: "daemon", Image: "daemon", Ports: []corev1.ContainerPort{{ContainerPort: port, HostPort: port}}}},
				},
			},
		},
	})
}

// Karpenter counts the host ports of DaemonSets by instance type: those of one architecture
// must not block the other.
func TestScheduleArchitectures(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	k.readyPool()
	k.daemonSet(karpv1.ArchitectureAmd64, 8000)
	k.daemonSet(karpv1.ArchitectureArm64, 9000)
	for name, port := range map[string]int32{"a": 8000, "b": 9000} {
		// Without topology spread constraints: core tries one zone per pod, at random.
		k.PendingPod(name, "1", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port, HostPort: port}}
		})
	}
	hosts := map[string]string{}
	for _, claim := range k.launchPending() {
		hosts[claim.Labels[corev1.LabelTopologyZone]] = claim.Labels[corev1.LabelArchStable]
		if claim.Labels[corev1.LabelArchStable] == karpv1.ArchitectureArm64 {
			k.Expect(claim.Labels[corev1.LabelInstanceTypeStable]).To(HaveSuffix("-arm64"))
		}
		k.expectNotDrifted(claim)
	}
	k.Expect(hosts).To(Equal(map[string]string{"pve1": karpv1.ArchitectureAmd64, "pve2": karpv1.ArchitectureArm64}))
}

// A Node that was created when all hosts of its class were arm64 keeps its type.
func TestScheduleArchitecturesKeepNode(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	class := k.readyPool()
	claim := k.Launched("a", class, func(c *karpv1.NodeClaim) {
		c.Spec.Requirements = append(c.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.ArchitectureArm64},
		})
		c.Spec.Requirements[0].Values = append(c.Spec.Requirements[0].Values, testenv.InstanceType+"-arm64")
	})
	labels := k.Types.Labels(class, testenv.InstanceType, placement.Zone{Region: testenv.Region, Host: "pve2"})
	k.Expect(labels).To(HaveKeyWithValue(corev1.LabelArchStable, karpv1.ArchitectureArm64))
	maps.Copy(claim.Labels, labels)
	k.Expect(k.Kube.Update(k.ctx, claim)).To(Succeed())
	k.expectNotDrifted(claim)
}

// expectNotDrifted checks that core finds the instance type of a claim two hours later.
func (k *karpenter) expectNotDrifted(claim *karpv1.NodeClaim) {
	k.T.Helper()
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	k.Expect(k.Kube.Status().Update(k.ctx, claim)).To(Succeed())
	later := testclock.NewFakeClock(claim.CreationTimestamp.Add(2 * time.Hour))
	_, err := coredisruption.NewController(later, k.Kube, provider(k.Env)).Reconcile(k.ctx, claim)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)).To(BeNil(), "with the labels %v", claim.Labels)
}
