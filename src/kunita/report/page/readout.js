// The posterior at any place: tensor-product B-splines (see readout.py, which does the same in Python).

const bytesOf = (id) => Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));

async function inflated(id) {
  const stream = new Blob([bytesOf(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const applied = (matrix, point) =>
  matrix.slice(0, -1).map((row) => row.slice(0, -1).reduce((sum, a, k) => sum + a * point[k], row[row.length - 1]));

// The splines that are not zero at x: the first of them, and all their values (Cox and de Boor).
function basis(knots, degree, x) {
  let span = degree;
  while (span < knots.length - degree - 2 && x >= knots[span + 1]) span += 1;
  const values = [1], left = [], right = [];
  for (let k = 1; k <= degree; k += 1) {
    left[k] = x - knots[span + 1 - k];
    right[k] = knots[span + k] - x;
    let carried = 0;
    for (let r = 0; r < k; r += 1) {
      const share = values[r] / (right[r + 1] + left[k - r]);
      values[r] = carried + right[r + 1] * share;
      carried = left[k - r] * share;
    }
    values[k] = carried;
  }
  return { first: span - degree, values };
}

class Readout {
  constructor(document, coefficients) {
    Object.assign(this, document);
    this.coefficients = coefficients;
    this.dimension = document.degrees.length;
  }

  // Everything that is known at a fixed point, or null outside of what the page carries.
  at(point) {
    const voxel = applied(this.toVoxels, point), d = this.dimension;
    if (voxel.some((x, k) => !(x >= -0.5 && x <= this.lastVoxel[k] + 0.5))) return null;
    const values = this.components(voxel.map((x, k) => Math.min(Math.max(x, 0), this.lastVoxel[k])));
    const from = applied(this.back, point).map((x, k) => x + values[k]);
    const displacement = point.map((y, k) => y - from[k]);
    const covariance = values.slice(d, -1);
    return {
      point, from, displacement, length: Math.hypot(...displacement), std: this.std(covariance),
      radius: this.radius95(covariance), jacobian: values[values.length - 1],
    };
  }

  components(voxel) {
    const along = voxel.map((x, k) => basis(this.knots[k], this.degrees[k], x));
    const count = this.shape[this.dimension], total = new Array(count).fill(0);
    const visit = (axis, offset, weight) => {
      if (axis === this.dimension) {
        for (let c = 0; c < count; c += 1) total[c] += weight * this.coefficients[offset * count + c];
        return;
      }
      const { first, values } = along[axis];
      values.forEach((value, k) => visit(axis + 1, offset * this.shape[axis] + first + k, weight * value));
    };
    visit(0, 0, 1);
    return total;
  }

  std(packed) {
    const trace = this.dimension === 3 ? packed[0] + packed[2] + packed[5] : packed[0] + packed[2];
    return Math.sqrt(Math.max(trace, 0) / this.dimension);
  }

  // The ball that holds 95 %: R/√tr Λ is a polynomial of two invariants (see gaussians.py).
  radius95(packed) {
    const [xx, yx, yy, zx = 0, zy = 0, zz = 0] = packed, trace = xx + yy + zz;
    if (!(trace > 0)) return 0;
    const square = xx * xx + yy * yy + zz * zz + 2 * (yx * yx + zx * zx + zy * zy);
    const determinant = xx * (yy * zz - zy * zy) - yx * (yx * zz - zy * zx) + zx * (yx * zy - yy * zx);
    const a = 1.5 * square / trace ** 2 - 0.5, b = 27 * determinant / trace ** 3;
    const horner = (coefficients, x) => coefficients.reduceRight((sum, c) => sum * x + c, 0);
    return horner(this.radius.map((row) => horner(row, b)), a) * Math.sqrt(trace);
  }
}
