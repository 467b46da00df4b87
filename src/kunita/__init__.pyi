from kunita.data.landmarks import Landmarks as Landmarks
from kunita.errors import KunitaError as KunitaError
from kunita.errors import KunitaWarning as KunitaWarning
from kunita.flow.moments import Moments as Moments
from kunita.flow.moments import moments as moments
from kunita.flow.shooting import Trajectory as Trajectory
from kunita.flow.shooting import reverse as reverse
from kunita.flow.shooting import shoot as shoot
from kunita.flow.simulate import simulate as simulate
from kunita.flow.transport import transport as transport
from kunita.gaussians import GaussianPoints as GaussianPoints
from kunita.io.registration_files import load as load
from kunita.io.registration_files import save as save
from kunita.kernels import Gaussian as Gaussian
from kunita.kernels import Matern32 as Matern32
from kunita.kernels import Matern52 as Matern52
from kunita.kernels import Matern72 as Matern72
from kunita.kernels import RationalQuadratic as RationalQuadratic
from kunita.kernels import Sum as Sum
from kunita.posterior import LeaveOneOut as LeaveOneOut
from kunita.posterior import Posterior as Posterior
from kunita.registration import Registration as Registration
from kunita.registration import register as register

__version__: str
