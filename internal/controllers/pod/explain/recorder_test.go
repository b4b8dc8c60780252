// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testworld"
)

func pod(uid, cpu string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func TestAPodThatFitsNowhereIsToldHostByHostWhy(t *testing.T) {
	t.Parallel()
	w := testworld.New(t, testworld.Hosts(3), testworld.Still())
	class := w.Class()
	w.Pool(class, func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	})
	w.Expect(w.Sim.HostDown("pve2", "")).To(Succeed())
	w.Refresh()
	recorder := explain.Decorate(w.Events, w.Kube, w.Instances, w.Clock)
	fail := func(p *corev1.Pod) {
		recorder.Publish(scheduling.PodFailedToScheduleEvent(p, errors.New("no offering")))
	}

	hungry := pod("hungry", "3", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "pve2"} })
	fail(hungry)
	w.Expect(w.Events.About(hungry)).To(Equal([]string{"FailedScheduling", explain.Reason}))
	w.Expect(w.Events.Messages(explain.Reason)).To(HaveExactElements(ContainSubstring("pve2: offline")))
	fail(hungry)
	w.Expect(w.Events.Messages(explain.Reason)).To(HaveLen(1), "once is enough for a while")
	w.Clock.Advance(6 * time.Minute)
	fail(hungry)
	w.Expect(w.Events.Messages(explain.Reason)).To(HaveLen(2))

	fail(pod("giant", "640"))
	w.Expect(w.Events.Messages(explain.Reason)[2]).To(And(ContainSubstring("NodePool"), ContainSubstring("no instance type is large enough")))

	modest := pod("modest", "100m")
	fail(modest)
	w.Expect(w.Events.About(modest)).To(Equal([]string{"FailedScheduling"}), "there is room: something else is in the way, and core said what")

	stranger := pod("stranger", "640", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: "of-somebody-else"}
	})
	fail(stranger)
	w.Expect(w.Events.About(stranger)).To(Equal([]string{"FailedScheduling"}), "it is not for any of our pools")

	w.Clock.Advance(time.Minute)
	for n := range 200 {
		fail(pod(fmt.Sprint("many-", n), "640"))
	}
	w.Expect(len(w.Events.Messages(explain.Reason))).To(BeNumerically("<", 60), "a thousand pods of one kind need not all be explained")
}
