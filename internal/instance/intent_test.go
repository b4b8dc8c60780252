// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func claimWithIntent(raw string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "default-abc", Annotations: map[string]string{v1alpha1.AnnotationLaunchIntent: raw}}}
}

// The files are intents of all releases. They are never edited: a new format gets a new
// file, and the old ones stay readable.
func TestReadIntentOfAllReleases(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/formats/intent-*.json")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			raw, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			in, ok, err := ReadIntent(claimWithIntent(string(raw)))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ok).To(BeTrue())
			g.Expect(in.Encode()).To(MatchJSON(raw), "a field was lost or renamed, or a new one is not omitted when empty")
		})
	}
}

func TestReadClaimOfOlderRelease(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	raw, err := os.ReadFile("testdata/formats/claim-v1.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	claim := &karpv1.NodeClaim{}
	g.Expect(yaml.UnmarshalStrict(raw, claim)).To(Succeed())

	in, ok, err := ReadIntent(claim)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ok).To(BeTrue())
	g.Expect(in.ProviderID()).To(Equal(claim.Status.ProviderID))
	g.Expect(in.Reservation(claim)).To(And(
		HaveField("ClaimUID", "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"), HaveField("VMID", 20123), HaveField("Amount.CPUs", 2), HaveField("DiskBytes", int64(30000000000))))
	g.Expect(resourcePool(claim)).To(Equal("karpenter"))
	g.Expect(NewLaunchTracker().CloneTask(claim)).To(Equal(proxmox.UPID("UPID:pve1:0001A2B3:0C4D5E6F:69573015:qmclone:9000:karpenter@pve!karpenter:")))
	progress := ReadProgress(claim)
	g.Expect(progress.Phase).To(Equal(PhaseStarted))
	g.Expect(progress.Encode()).To(MatchJSON(claim.Annotations[v1alpha1.AnnotationLaunchProgress]))
	since, moved := MigratedSince(claim)
	g.Expect(moved).To(BeTrue())
	g.Expect(since).To(Equal(time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)))
	for _, key := range []string{v1alpha1.AnnotationLaunchCompleted, v1alpha1.AnnotationNodeClassHash, v1alpha1.AnnotationNodeClassHashVersion, v1alpha1.AnnotationInPlaceUpdateHash} {
		g.Expect(claim.Annotations).To(HaveKey(key))
	}
	g.Expect(claim.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationBootDataStatus, v1alpha1.BootDataInitialized))
}

func TestReadIntentErrors(t *testing.T) {
	t.Parallel()
	const location = `"region":"r","host":"h","vmid":20001`
	for name, c := range map[string]struct {
		raw   string
		newer bool
		want  string
	}{
		"newer_version":                  {`{"v":2,` + location + `,"cores":{"count":2}}`, true, "found version 2, this controller reads version 1: it was written by a newer controller release"},
		"no_version":                     {`{` + location + `}`, false, "found version 0"},
		"no_location":                    {`{"v":1,"region":"r","host":"h"}`, false, "VM 0"},
		"newer_version_without_location": {`{"v":2,"region":"r"}`, false, `host ""`},
		"other_field_type":               {`{"v":1,` + location + `,"cores":{"count":2}}`, false, "cores"},
		"no_JSON":                        {`yes`, false, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			in, _, err := ReadIntent(claimWithIntent(c.raw))
			g.Expect(err).To(MatchError(And(ContainSubstring(c.want), ContainSubstring("launch-intent of NodeClaim default-abc"))))
			if c.newer {
				g.Expect(err).To(MatchError(ErrNewerVersion))
				g.Expect(fmt.Sprint(in.Region, in.Host, in.VMID)).To(Equal("rh20001"), "the location is in every version")
			} else {
				g.Expect(err).NotTo(MatchError(ErrNewerVersion))
			}
		})
	}
}

func TestReadInvalidProgress(t *testing.T) {
	t.Parallel()
	claim := claimWithIntent("")
	claim.Annotations[v1alpha1.AnnotationLaunchProgress] = `{"phase":["Later"],"timeline":7}`
	NewWithT(t).Expect(ReadProgress(claim).Phase).To(Equal(PhasePlanned))
}
