// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/version"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
)

// server is an API server with a version.
type server struct {
	version string
	err     error
	reads   int
}

func (s *server) ServerVersion() (*version.Info, error) {
	s.reads++
	return &version.Info{GitVersion: s.version}, s.err
}

// secrets answers every read with boot data that contains the version.
type secrets struct{ client.Reader }

func (secrets) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if secret, ok := o.(*corev1.Secret); ok {
		secret.Data = map[string][]byte{"user-data": []byte("#cloud-config\nversion: {{ .Kubernetes.Version }}\n")}
	}
	return nil
}

func TestPreviewAfterUpgrade(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	api, clock := &server{version: "v1.35.1"}, clocktesting.NewFakePassiveClock(time.Now())
	current, err := boot.NewServerVersion(api, clock)
	g.Expect(err).NotTo(HaveOccurred())
	source := boot.Source{Reader: secrets{}, Version: current}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: "team", Name: "templates"}}
	rendered := func() string {
		files, err := source.Preview(t.Context(), class, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return string(files.UserData)
	}
	g.Expect(rendered()).To(ContainSubstring("v1.35.1"))

	api.version = "v1.36.3"
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	g.Expect(rendered()).To(ContainSubstring("v1.36.3"))
	reads := api.reads
	g.Expect(rendered()).To(ContainSubstring("v1.36.3"))
	g.Expect(api.reads).To(Equal(reads), "cached")

	api.version, api.err = "", errors.New("connection refused")
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	g.Expect(rendered()).To(ContainSubstring("v1.36.3"), "the last known one")
}

func TestNewServerVersionFailure(t *testing.T) {
	t.Parallel()
	_, err := boot.NewServerVersion(&server{err: errors.New("connection refused")}, clocktesting.NewFakePassiveClock(time.Now()))
	NewWithT(t).Expect(err).To(MatchError("reading the API server's version: connection refused"))
}
