// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// image is a web server that responds to all requests with the same content.
type image []byte

func (i image) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(i)), ContentLength: int64(len(i))}, nil
}

// download starts to download an image and returns the task.
func (c *client) download() any {
	return c.ok("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", "https://images.example.com/a")
}

func TestDownloadProgress(t *testing.T) { simulated(t, testDownloadProgress) }

func testDownloadProgress(t *testing.T, g *WithT) {
	s := pvesim.DefaultScenario(1)
	s.Hosts[0].DownloadRate = 16 * pvesim.MiB
	c := startSim(t, s, pvesim.Options{Web: make(image, 80<<20)})
	task := c.download()
	g.Expect(c.exit(task)).To(Equal("OK"))
	g.Expect(c.log(task)).To(ContainElements(ContainSubstring(" 40%"), ContainSubstring(" 80%"), ContainSubstring("100%")))
}

func TestDownloadStorageFull(t *testing.T) { simulated(t, testDownloadStorageFull) }

func testDownloadStorageFull(t *testing.T, g *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Web: image("image")})
	g.Expect(c.sim.SetStorageFull("local", true)).To(Succeed())
	task := c.download()
	g.Expect(c.exit(task)).To(Equal("download failed: exit code 3"))
	g.Expect(strings.Join(c.log(task), "\n")).To(ContainSubstring("No space left on device"))
	g.Expect(c.ok("GET", "/nodes/pve1/storage/local/content?content=import")).To(BeEmpty())
}
